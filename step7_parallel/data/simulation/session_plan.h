#pragma once
// Conversations as a workload: how much is said in each turn, and how long its user thinks. Drawn before anything runs, so
// that every balancer gets the same, simulated (fleet_simulation.h) or with real engines (cli/bench/session_load.h).
#include <cstdint>
#include <vector>

namespace ladder {

struct PlannedTurn {
  int64_t num_new_tokens = 0;  // of the user, behind all that was said before
  int64_t num_output = 0;
  double think_seconds = 0;  // before it is sent; the first one's is not looked at
};
using PlannedSession = std::vector<PlannedTurn>;

// Lengths are uniform in their ranges, thinking is exponential. These sessions have about 8k tokens at the end.
struct SessionShape {
  int64_t num_turns = 8;
  int64_t min_new_tokens = 512, max_new_tokens = 1024;  // of each turn
  int64_t min_output = 128, max_output = 384;
  double think_seconds = 5;  // in the mean
};

std::vector<PlannedSession> make_growing_sessions(int64_t count, uint64_t seed,
                                                  const SessionShape& shape = {});
// One turn each, prompts and answers uniform in 100 .. 1024 tokens: the field's common workload.
std::vector<PlannedSession> make_independent_requests(int64_t count, uint64_t seed);

}  // namespace ladder

#include "step7_parallel/data/simulation/session_plan.h"

#include <random>

#include "step7_parallel/data/simulation/draws.h"

namespace ladder {

std::vector<PlannedSession> make_growing_sessions(int64_t count, uint64_t seed, const SessionShape& shape) {
  std::mt19937_64 random(seed);
  std::vector<PlannedSession> sessions(static_cast<size_t>(count));
  for (PlannedSession& session : sessions)
    for (int64_t turn = 0; turn < shape.num_turns; ++turn) {
      const int64_t num_new_tokens = draw_uniform(random, shape.min_new_tokens, shape.max_new_tokens);
      const int64_t num_output = draw_uniform(random, shape.min_output, shape.max_output);
      session.push_back({num_new_tokens, num_output, draw_exponential(random, shape.think_seconds)});
    }
  return sessions;
}

std::vector<PlannedSession> make_independent_requests(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<PlannedSession> sessions(static_cast<size_t>(count));
  for (PlannedSession& session : sessions) {
    const int64_t prompt = draw_uniform(random, 100, 1024);
    session.push_back({prompt, draw_uniform(random, 100, 1024), 0});
  }
  return sessions;
}

}  // namespace ladder

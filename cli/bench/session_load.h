#pragma once
// Conversations with real engines. A turn's prompt is all that was said before, the answers as they were generated, and new
// tokens; it is sent when the turn before it has ended and its user has thought.
//
//   session 0  [ turn ][ turn ][ turn ] session 2  [ turn ][ ...
//   session 1  [ turn ][   turn   ][ turn ] session 3  [ turn ...       (max_concurrency 2)
#include <cstdint>
#include <functional>
#include <vector>

#include "step6_engine/engine_client.h"
#include "step7_parallel/data/simulation/session_plan.h"

namespace ladder {

struct SessionLoad {
  std::vector<PlannedSession> sessions;
  int64_t max_concurrency = 0;  // sessions under way, those whose users think among them; 0: all at once
  int64_t vocab_size = 0;       // new tokens are random_ids() (workload.h); end tokens are ignored
  double temperature = 0.6;
  uint64_t seed = 0;
};

// Tokens that the longest session has when it ends.
int64_t longest_session(const std::vector<PlannedSession>& sessions);

// Until all sessions have ended; on_output gets each turn's output as it ends, on the caller's thread, before the session goes
// on. What a turn adds follows from the seed, its session and its number, whoever is faster. Error: as
// EngineClient::submit(), and what on_output throws; turns that are under way are then aborted.
void run_sessions(EngineClient& client, const SessionLoad& load,
                  const std::function<void(const RequestOutput&)>& on_output);

}  // namespace ladder

#pragma once
// A rank that somebody else has started (mpirun), and that is stopped (SIGSTOP) for ever: its connections stay open and
// its peers wait, so nobody notices. One that is killed is noticed at once, by whoever has started the ranks. So a child
// of the rank's process looks after it: sees its state in /proc, and kills it when it has not gone on for a while.
//
//   rank's process ------ forks ------> watcher: sleep, look at the parent's state, sleep, ...
//      stopped                             "ladder: error: rank 1 of 2 (pid 4711) was stopped (SIGSTOP) ...", SIGKILL
//
// It has no need of the other ranks, or of their machines, and takes nothing that lasts long (a large model that is
// loaded) for a stop.
#include <chrono>
#include <string>

namespace ladder {

class RankWatch {
 public:
  // As workers have it that the engine's process watches (ChildProcess::kStopPatience).
  static constexpr std::chrono::milliseconds kStopPatience{3'000};

  // While the process has one thread; its end is the watcher's. `name`: "rank 1 of 2", for the line that is said.
  // Error: there can be no other process.
  explicit RankWatch(const std::string& name, std::chrono::milliseconds patience = kStopPatience);
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;

 private:
  int watcher_;  // its pid
};

}  // namespace ladder

#pragma once
// The worker processes of one engine: started side by side, watched, and ended together.
//
// Whatever befalls one of them is the end of all: the others wait, or will, for what it does not send any more. What is
// looked at:
//
//   a worker says that it failed        its message (worker_messages.h), which it sends before it lets its peers go
//   its connection ends                 it is gone: how, the system says (ChildProcess)
//   it is stopped (SIGSTOP)             past ChildProcess::kStopPatience it is given up, and gone
//   it does not come back               no answer to a step: WorkerExecutor's deadline
//
// The first cause counts, and the failures that follow from it, in ranks that were released from a wait, are left out.
// Then the channels are closed with that reason, and all workers killed: nothing of them is worth waiting for, and one
// that waits for a dead GPU peer would never end by itself.
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "step4_runner/rank_start.h"
#include "step6_engine/process/child_process.h"
#include "step6_engine/process/message_socket.h"
#include "step7_parallel/workers/worker_channels.h"
#include "step7_parallel/workers/worker_messages.h"

namespace ladder {

// What a worker is started as: a program that calls run_worker_process() (worker_process.h).
struct WorkerProgram {
  std::vector<std::string> arguments;
  std::string program = "/proc/self/exe";  // this one
};

class WorkerProcesses {
 public:
  struct Failure {
    bool users_mistake = false;
    std::string text;  // one line, which names the rank
  };
  // What they do besides: show their caches (shared_kv_caches.h), tell what their layers have stored (told_layers.h).
  struct Shown {
    bool kv_caches = false, layers = false;
  };
  // Starts them all; `channels` outlives this.
  WorkerProcesses(const RunnerConfig& config, const RunFingerprint& fingerprint, const WorkerProgram& program,
                  WorkerChannels& channels, Shown shown, SummedProgress::Progress progress);
  ~WorkerProcesses();  // ends the ring of steps; workers that do not end by that are killed
  WorkerProcesses(const WorkerProcesses&) = delete;

  // By rank, when all of them are ready. Throws what check() does.
  std::vector<WorkerReady> wait_until_ready();
  // Nothing, or throws the failure: an Error where it is the user's mistake, else ProcessFailed.
  void check() const;
  // From outside: some step has no answer. Where there is a failure already, that one counts.
  void end_all(const Failure& failure);

  std::vector<int> pids() const;

 private:
  struct Worker {
    std::unique_ptr<ChildProcess> child;
    std::unique_ptr<MessageSocket> socket;
    std::thread listener;
    std::optional<WorkerReady> ready;
  };

  void listen(int rank, const WorkerSetup& setup);
  void hear(int rank, const Message& message);
  void watch();
  void abandon();  // where not all could be started
  void end_all_later(const Failure& failure);

  const RunnerConfig config_;
  WorkerChannels& channels_;
  SummedProgress progress_;
  std::vector<Worker> workers_;
  std::thread watcher_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool ending_ = false;
  std::optional<Failure> failure_;
  // What follows from a failure that has not been heard of yet, and until when that is waited for.
  std::optional<Failure> derived_;
  std::chrono::steady_clock::time_point derived_until_;
};

}  // namespace ladder

#pragma once
// 7.9: the replicas of this process that share out a layer's experts, and so step together: what lies between them.
//
//   a group for each stage         of all replicas' ranks there: tokens to their experts and back (expert_exchange.h); a
//                                  LocalGroup, or where these ranks are processes one in shared memory
//   a LocalGroup of the replicas   one vote each at every step (wave.h), and how many rows it has (common_rows.h)
//   a Wave of each                 start messages go from one to the others
//
// Replicas of a group end together: what one of them fails with is the end of all, and none leaves while others may need it.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "step1_layers/distributed/local_group.h"
#include "step4_runner/executor_options.h"
#include "step7_parallel/communicators/shared_memory_group.h"
#include "step7_parallel/data/replica.h"
#include "step7_parallel/data/wave.h"

namespace ladder {

// Of a replica, whose engine is a thread of this process either way.
enum class RanksAre { threads, processes };

class LockstepGroup {
 public:
  // Of a replica that leaves alone, until it counts as failed.
  static constexpr std::chrono::milliseconds kLeavePatience{5'000};

  // Of config.expert_replicas replicas with its grid of ranks. Error: there is not that much shared memory.
  explicit LockstepGroup(const RunnerConfig& config, RanksAre ranks = RanksAre::threads);

  // Of a replica that has joined. Error: on GPUs, where all warm up with the same rows and capture the same graphs, its sequences
  // may be of another length than those of the first one.
  void expect_same_steps(const RunnerConfig& config) const;

  // For the ranks of a replica, which are threads.
  ExpertRanks ranks_of(int replica);
  // The same where they are processes: of each the descriptor of its stage's group (workers/worker_channels.h). Any replica's.
  std::vector<int> shared_ranks() const;

  // The replica has to step; or to hear that the group has failed.
  bool is_awaited(int replica) const;
  // `wake` is called by any thread when it becomes true.
  void on_awaited(int replica, std::function<void()> wake);
  // The replica comes to a step, with one of its own of so many rows or without, and waits for all others; with one, and where
  // all sleep, it starts the wave. All run the step, each with as many rows as is returned: on the CPU its own, on GPUs, whose
  // graphs all have to have one size, as many as all others (common_rows.h). None: nobody has one, and the wave has
  // ended. Error: the group has failed.
  std::optional<int64_t> next_step(int replica, std::optional<int64_t> rows);

  // The first call counts.
  void fail(int replica, const std::string& reason);
  // What befell another replica than this one first, for its readers; empty: nothing.
  std::string failure_of_another(int replica) const;
  // Error: the group has failed.
  void check() const;

  // The replica has no engine any more. True: it has to run along once more, and to ask again. False: all others are as far, or
  // the group has failed; then it leaves. Who runs along when the last one leaves gets an Error.
  bool is_awaited_at_the_end(int replica);
  void leave(int replica);
  // Failed or left: nobody joins it.
  bool has_ended() const;

 private:
  int size() const { return static_cast<int>(waves_.size()); }
  // What next_step() is made of, in this order; both without the mutex, which guards the waves.
  // The others get the message that the wave of this number begins.
  void start_others(int replica, int64_t number);
  struct Votes {
    std::vector<int32_t> has_step;  // as Wave::on_votes() takes it
    int64_t most_rows = 0;          // of any replica's step
  };
  // Waits until all replicas have voted, and returns what they said. Error: the group has failed.
  Votes vote(int replica, std::optional<int64_t> rows);
  // What a replica with so many rows runs where one has most.
  int64_t rows_to_run(int64_t mine, int64_t most) const;
  // `wake` of all replicas but this one, without the mutex.
  void wake_others(int replica) const;
  bool all_leave() const;  // under the mutex

  const int ranks_per_stage_;  // of a replica
  const BatchConfig batch_;
  const bool on_gpus_;
  const RanksAre ranks_are_;
  std::vector<std::unique_ptr<LocalGroup>> stages_;  // of threads,
  std::vector<SharedMemoryGroup> shared_stages_;     // or of processes
  LocalGroup votes_;

  mutable std::mutex mutex_;  // of all that follows
  std::condition_variable changed_;
  std::vector<Wave> waves_;  // by replica
  std::vector<std::function<void()>> wakes_;
  std::vector<bool> leaving_;
  int failed_replica_ = -1;
  std::string failure_;
};

// The groups of replicas one after the other: where one has failed, its replicas are started again and meet in the next.
class LockstepGroups {
 public:
  // Starts a replica by `load`, on whose way it joins. If that throws before all have started once, no replica starts any more:
  // nobody tries again then (replica.h), and the others would wait for it.
  StartedEngine start(int replica, const std::function<StartedEngine()>& load);
  // For a replica that starts. Error: none does any more.
  std::shared_ptr<LockstepGroup> join(const RunnerConfig& config, RanksAre ranks);
  // Of this group, which a replica has joined: it has its executor.
  void started(const LockstepGroup& group);
  // No replica is started any more; one that waits for others to start is released.
  void close();

 private:
  std::mutex mutex_;
  std::shared_ptr<LockstepGroup> group_;
  int num_starting_ = 0;  // of those that group_ needs
  bool have_started_ = false;
  std::string closed_;  // why no replica is started any more
};

}  // namespace ladder

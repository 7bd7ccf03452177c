#pragma once
// A rank that is a process: its device, its groups (the tensor-parallel ranks beside it, its column of stages, the
// context ranks that share out a step's rows with it, and the ranks of all replicas that share out experts with it), and its runner.
//
//   CPU    the groups are those that it was given, in shared memory or of MPI
//   GPU    a GpuCommunicator over each of them, by which its ranks find each other
#include <memory>
#include <span>

#include "step4_runner/executor_options.h"
#include "step4_runner/model_runner.h"
#include "step4_runner/rank_grid.h"

namespace ladder {

class BalancedModel;  // step7_parallel/expert/balanced_model.h

// nullptr: a group of one.
struct RankGroups {
  Communicator *tensor = nullptr, *column = nullptr, *context = nullptr, *experts = nullptr;
};

class ProcessRank {
 public:
  // Takes part in its groups, which outlive it. `config` is resolved. `local_rank`: among the
  // ranks of this machine, which on GPUs have one each. All ranks come here together.
  ProcessRank(const RunnerConfig& config, int rank, int local_rank, const RankGroups& groups);
  ~ProcessRank();
  ProcessRank(const ProcessRank&) = delete;

  // Loads the model and warms up: together with all others. options.config is not looked at. `loaded` is called when the
  // model is there and no peer has been waited for; it may put another one around it.
  void start(const ExecutorOptions& options, const std::function<void(std::unique_ptr<Model>&)>& loaded = {});
  // As ModelRunner::launch(). Error, also: a call to peers that was begun on a GPU has failed.
  std::shared_ptr<const LaunchedStep> launch(const SchedulerOutput& step, std::span<const KnownTokens> known);

  const ModelRunner& runner() const { return *runner_; }
  bool answers() const { return rank_ == answering_rank(config_); }

 private:
  struct Groups;

  RunnerConfig config_;
  int rank_;
  std::shared_ptr<void> device_;
  std::unique_ptr<Groups> groups_;
  OpContext ctx_;
  BalancedModel* balanced_ = nullptr;  // the runner's, on a GPU: it hears of each step
  std::unique_ptr<ModelRunner> runner_;
};

// Where a rank runs: on GPUs each has one of its own, the ranks of this machine one after the other.
Device device_of_rank(const RunnerConfig& config, int local_rank);
// Error, naming the flags: fewer GPUs than `ranks`, those on this machine.
void expect_a_gpu_for_each_rank(const RunnerConfig& config, int ranks);

}  // namespace ladder

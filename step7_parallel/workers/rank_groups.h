#pragma once
// The groups of one rank that is a process: its stage's tensor-parallel ranks, and its column of stages.
//
//   CPU    the groups that it was given, in shared memory or of MPI
//   GPU    a GpuCommunicator over each of them, by which its ranks find each other
#include <memory>

#include "step1_layers/core/context.h"
#include "step1_layers/distributed/communicator.h"
#include "step4_runner/rank_grid.h"

#ifdef LADDER_HAS_CUDA
#include "step7_parallel/communicators/gpu/gpu_communicator.h"
#endif

namespace ladder {

class RankGroups {
 public:
  // nullptr: a group of one. All ranks come here together, the columns after the stages. ctx: of the rank's device.
  RankGroups(const OpContext& ctx, std::unique_ptr<Communicator> stage, std::unique_ptr<Communicator> column);
  RankGroups(const RankGroups&) = delete;

  const ParallelContext& context() const { return context_; }
  // Error: a call that was begun on a GPU has failed. Waits for nothing.
  void check() const;

 private:
  std::unique_ptr<Communicator> stage_, column_;
#ifdef LADDER_HAS_CUDA
  std::unique_ptr<GpuCommunicator> gpu_stage_, gpu_column_;
#endif
  ParallelContext context_;
};

// Where a rank of the configuration runs: on GPUs each has one of its own, the ranks of this machine one after the other.
Device device_of_rank(const RunnerConfig& config, int local_rank);
// Error, naming the flags: fewer GPUs than ranks, `ranks` of them on this machine.
void expect_a_gpu_for_each_rank(const RunnerConfig& config, int ranks);

}  // namespace ladder

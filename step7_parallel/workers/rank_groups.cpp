#include "step7_parallel/workers/rank_groups.h"

#include "step1_layers/core/error.h"

namespace ladder {

RankGroups::RankGroups([[maybe_unused]] const OpContext& ctx, std::unique_ptr<Communicator> stage,
                       std::unique_ptr<Communicator> column)
    : stage_(std::move(stage)), column_(std::move(column)) {
  if (stage_) context_.tp = stage_.get();
  if (column_) context_.pp = column_.get();
#ifdef LADDER_HAS_CUDA
  if (ctx.device.type != DeviceType::cuda) return;
  if (stage_) context_.tp = (gpu_stage_ = std::make_unique<GpuCommunicator>(ctx, *stage_)).get();
  if (column_) context_.pp = (gpu_column_ = std::make_unique<GpuCommunicator>(ctx, *column_)).get();
#endif
}

void RankGroups::check() const {
#ifdef LADDER_HAS_CUDA
  if (gpu_stage_) gpu_stage_->check();
  if (gpu_column_) gpu_column_->check();
#endif
}

Device device_of_rank(const RunnerConfig& config, int local_rank) {
  return config.device.is_cpu() ? config.device
                                : Device{config.device.type, config.device.index + local_rank};
}

void expect_a_gpu_for_each_rank(const RunnerConfig& config, int ranks) {
  if (config.device.type != DeviceType::cuda) return;
  const int gpus = cuda_device_count();
  LADDER_CHECK(
      config.device.index + ranks <= gpus,
      "--tensor-parallel-size {} and --pipeline-parallel-size {} from {} on: {} ranks on this machine need a GPU "
      "each, and it has {}",
      config.tensor_parallel_size, config.pipeline_parallel_size, device_name(config.device), ranks, gpus);
}

}  // namespace ladder

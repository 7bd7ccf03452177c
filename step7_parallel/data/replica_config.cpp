#include "step7_parallel/data/replica_config.h"

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step4_runner/rank_grid.h"

namespace ladder {

EngineOptions options_of_replica(const EngineOptions& options, const DecoderSpec& spec, int local,
                                 int num_local, MachineMemory memory) {
  EngineOptions own = options;
  RunnerConfig& runner = own.runner;
  if (runner.expert_replicas > 1) runner.expert_replica = local;
  if (!runner.device.is_cpu()) {
    runner.device.index += local * num_ranks(runner);
    return own;
  }
  const int threads = runner.threads > 0 ? runner.threads : num_threads();
  runner.threads = std::max(1, threads / num_local);
  if (runner.kv_memory == 0 && runner.batch.num_kv_blocks == 0)
    runner.batch.num_kv_blocks =
        resolved_runner_config(own, spec, {memory.total / num_local, memory.available / num_local})
            .batch.num_kv_blocks;
  return own;
}

void expect_a_gpu_for_each_replica(const RunnerConfig& config, int num_local) {
  if (config.device.type != DeviceType::cuda) return;
  const int gpus = cuda_device_count(), wanted = num_local * num_ranks(config);
  LADDER_CHECK(
      config.device.index + wanted <= gpus,
      "--data-parallel-size: {} replicas on this machine of {} rank{} each need a GPU for each rank, "
      "{} from {} on, and it has {}",
      num_local, num_ranks(config), num_ranks(config) == 1 ? "" : "s", wanted, device_name(config.device),
      gpus);
}

}  // namespace ladder

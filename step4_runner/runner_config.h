#pragma once
// What the runner is built with. The command line fills it in, resolve_runner_config() (kv_cache_size.h)
// settles what was not set, and from then on the scheduler, the block manager and the runner read the same
// numbers.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "step1_layers/core/device.h"
#include "step1_layers/core/dtype.h"
#include "step2_model/model.h"
#include "step3_sequence/batch_config.h"

namespace ladder {

#ifdef NDEBUG
inline constexpr bool kIsDebugBuild = false;
#else
inline constexpr bool kIsDebugBuild = true;
#endif

struct RunnerConfig {
  Device device;
  DType dtype = DType::f32;
  LoadFormat load_format = LoadFormat::automatic;
  // How the linears are stored, for what the weights take (weight_bytes.h). Empty: dense.
  decltype(ModelMakers::linear_method) linear_method;

  KvCacheDType kv_cache_dtype =
      KvCacheDType::automatic;  // codes of a key or value (step1_layers/attention/kv_codes.h)
  BatchConfig batch;            // sizes of a step, of a sequence and of the KV cache
  int64_t kv_memory = 0;  // bytes, all ranks of this process together. 0: a share of this machine's memory
  // On a GPU where neither kv_memory nor num_kv_blocks was given: num_kv_blocks is a prediction, which the
  // warm-up replaces by what it measures.
  bool num_kv_blocks_is_predicted = false;
  bool max_model_len_is_default = false;  // what the cache holds may shorten it

  // On a GPU. The cache gets what this share of its memory leaves beside weights and the measured warm-up.
  double gpu_memory_utilization = 0.9;
  bool cuda_graphs = true;       // short steps are replayed from captured graphs; --enforce-eager: never
  bool async_scheduling = true;  // step N + 1 is prepared and launched while step N runs
  bool dependent_launch = true;  // a kernel is set up while the one before it ends, where the GPU can (9.0)

  // The grid of ranks (rank_grid.h). On GPUs each rank has one of its own, `device` and those after it.
  int tensor_parallel_size = 1;
  int pipeline_parallel_size = 1;
  // So many ranks, each with the whole of a stage's share of the weights, compute a part of a step's rows each and keep all
  // keys (step 7, 7.12). With makers of such a model and such attention.
  int prefill_context_parallel_size = 1;
  // Of the tensor-parallel ranks that share a KV head, so many neighbours also share out its keys, in turns of so many tokens
  // (step 7, 7.11). A KV block's slots are then divided among them. With a maker of such attention.
  int decode_context_parallel_size = 1;
  int64_t kv_interleave_size = 1;
  std::vector<int64_t>
      stage_ends;  // the layers at which the stages end, ascending. Empty: as even as they go
  // The ranks of a stage share out the experts of a layer whole (rank_grid.h, experts_of_rank), instead of each one's width.
  bool expert_parallel = false;
  // So many replicas of the engine share them out together, and this is that one (step 7, 7.9): their ranks step in lockstep.
  int expert_replicas = 1, expert_replica = 0;
  // Experts change places while the engine runs, by how many tokens ask for each, with so many copies more than there are
  // experts in a layer (step 7, 7.9). With makers of such layers.
  bool balance_experts = false;
  int64_t num_redundant_experts = 0;
  bool naive_pipeline = false;         // one batch at a time goes through all stages (a baseline)
  bool check_batches = kIsDebugBuild;  // on the CPU the ranks compare theirs at every step (batch_check.h)
  int threads = 0;                     // all ranks together. 0: one per core
  std::map<std::string, std::string, std::less<>> kernels;  // --kernel op=variant
};

}  // namespace ladder

#pragma once
// What the runner is built with. The command line fills it in, resolve_runner_config() (memory.h) settles
// what was left open, and from then on the scheduler, the block manager and the runner read the same numbers.
#include <cstdint>
#include <map>
#include <string>

#include "step1_layers/core/device.h"
#include "step1_layers/core/dtype.h"
#include "step2_model/model.h"

namespace ladder {

struct RunnerConfig {
  Device device;
  DType dtype = DType::f32;
  LoadFormat load_format = LoadFormat::automatic;

  int64_t max_num_seqs = 64;             // sequences in one step
  int64_t max_num_batched_tokens = 512;  // rows in one step, padding rows included
  int64_t max_model_len = 0;  // prompt and output of one sequence. 0: the model's, or what the cache holds
  int64_t block_size = 16;    // token slots in one KV block

  int64_t num_kv_blocks = 0;  // 0: as many as kv_memory holds
  int64_t kv_memory = 0;  // bytes, all ranks of this process together. 0: a share of this machine's memory
  // On a GPU, where neither was given: num_kv_blocks is a prediction, which the warm-up replaces by what it
  // measures.
  bool kv_cache_is_open = false;
  bool max_model_len_is_open = false;  // what the cache holds may shorten it

  // On a GPU. The cache gets what this share of its memory leaves beside weights and the measured warm-up.
  double gpu_memory_utilization = 0.9;
  bool cuda_graphs = true;       // short steps are replayed from captured graphs; --enforce-eager: never
  bool async_scheduling = true;  // step N + 1 is prepared and launched while step N runs
  bool dependent_launch = true;  // a kernel is set up while the one in front ends, where the GPU can (9.0)

  int tensor_parallel_size = 1;
  int threads = 0;                                          // all ranks together. 0: one per core
  std::map<std::string, std::string, std::less<>> kernels;  // --kernel op=variant

  // Entries of one row of the block table. One more than max_model_len tokens fill when it is a multiple of
  // the block size: the scheduler may reserve the slot of a token that is sampled last and never computed.
  int64_t max_blocks_per_seq() const { return max_model_len / block_size + 1; }
};

}  // namespace ladder

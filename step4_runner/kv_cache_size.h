#pragma once
// Task 4.2: how many blocks the KV cache has, and how long a sequence may be.
//
// Whatever memory is left for the cache is given to it at the start, as a server of unknown requests can only
// run as many as it has slots for. On a GPU its size is computed twice: resolve_runner_config() predicts it
// (memory.h says what the rest takes) before anything is loaded, so that `ladder info` and the first checks
// have numbers; when the weights are loaded and the largest steps have run, the warm-up (warm_up.cpp) calls
// size_kv_cache() with what the driver says is in use, and that size is the one that is allocated.
//
// Untouched pages cost nothing on a CPU, so the cache is written once when it is made: what a run uses is
// then what was announced, at once, and not after an hour. vLLM: gpu_worker.determine_available_memory and
// v1/core/kv_cache_utils.py.
#include <cstdint>
#include <span>
#include <vector>

#include "step1_layers/attention/kv_cache.h"
#include "step2_model/decoder/decoder_spec.h"
#include "step4_runner/memory.h"
#include "step4_runner/runner_config.h"

namespace ladder {

// Settles what was not set: the limits of a step (default_batch_limits), max_model_len, num_kv_blocks,
// threads. The KV cache gets, in this order,
//   num_kv_blocks   as asked for
//   kv_memory       as many blocks as fit
//   otherwise       on the CPU a quarter of the memory, at most 4 GiB, at most 90 % of what is free beside
//                   weights and activations, and never more than max_num_seqs sequences of max_model_len can
//                   use; on a GPU what gpu_memory_utilization leaves beside what else is in its memory, on
//                   the rank with the least. That is a prediction (num_kv_blocks_is_predicted) until the warm-up
//                   has measured it.
// A max_model_len that was not set becomes the model's own, or what the cache holds if that is less. Error,
// naming the flag: a size below 1, ranks that do not divide the heads, more stages than layers, a max_model_len beyond
// the model's, a
// cache that does not hold one sequence of max_model_len, a cache asked for that a GPU has no room for beside
// the model.
RunnerConfig resolve_runner_config(const DecoderSpec& spec, RunnerConfig config, MachineMemory memory);
RunnerConfig resolve_runner_config(const DecoderSpec& spec,
                                   const RunnerConfig& config);  // memory_of(its device)

// On a GPU: the cache that `used` bytes of its memory (by anyone, this process included) leave room for, on a rank of
// this stage. Error: it does not hold one sequence of max_model_len.
RunnerConfig size_kv_cache(const DecoderSpec& spec, RunnerConfig config, int64_t total, int64_t used,
                           int stage = 0);

// One view per layer, blocks [num_blocks, block_size, heads, dim] for K and for V, zeroed.
std::vector<KvCacheView> allocate_kv_caches(std::span<const KvCacheSpec> specs, int64_t num_blocks,
                                            int64_t block_size, Device device);

}  // namespace ladder

#pragma once
// How large a step, a sequence and the KV cache may be. One struct for everyone who has to agree on it: the
// runner sizes its buffers from it (RunnerConfig, step 4), the scheduler plans within it (SchedulerConfig,
// step 5). The names and the command line's flags are vLLM's.
#include <cstdint>

#include "step1_layers/core/device.h"

namespace ladder {

struct BatchConfig {
  // 0 means "not set" here; resolve_runner_config() (step 4) settles it before anything is allocated.
  int64_t max_num_seqs = 0;            // sequences in one step. Not set: default_batch_limits()
  int64_t max_num_batched_tokens = 0;  // rows of one step, padding rows included. Not set: likewise
  int64_t max_model_len =
      0;  // prompt and output of one sequence. Not set: the model's, or what the cache holds
  int64_t block_size = 16;    // token slots in one KV block
  int64_t num_kv_blocks = 0;  // Not set: as many as the memory for them holds

  // Entries of one row of the block table. One more than max_model_len tokens fill when it is a multiple of
  // the block size: the scheduler may reserve the slot of a token that is sampled last and never computed.
  int64_t max_blocks_per_seq() const { return max_model_len / block_size + 1; }
};

// The two limits of a step where they are not set. On a GPU they are vLLM's for one of 70 GB and more:
// decoding costs a GPU about the same for one sequence as for 256, as the weights are read once for all of
// them; and 8192 rows are enough for its matrix products to run at their full rate, yet take well under a
// tenth of a second on a model of 8 billion parameters, which decoding sequences have to wait for.
inline BatchConfig default_batch_limits(DeviceType device) {
  if (device == DeviceType::cuda) return {.max_num_seqs = 256, .max_num_batched_tokens = 8192};
  return {.max_num_seqs = 64, .max_num_batched_tokens = 512};
}

// What a flag may say, for the command line and for resolve_runner_config() alike. The bounds are larger than
// anything that fits a machine, and small enough that products of two do not overflow.
struct FlagRange {
  int64_t min = 0, max = 0;
};
inline constexpr FlagRange kMaxNumSeqsRange{1, 1 << 16};
inline constexpr FlagRange kMaxNumBatchedTokensRange{1, 1 << 20};
inline constexpr FlagRange kMaxModelLenRange{1, 1 << 24};
inline constexpr FlagRange kBlockSizeRange{1, 1 << 12};
inline constexpr FlagRange kNumKvBlocksRange{1, 1 << 30};
inline constexpr FlagRange kThreadsRange{1, 1 << 12};
inline constexpr FlagRange kTensorParallelSizeRange{1, 1 << 8};
inline constexpr FlagRange kPipelineParallelSizeRange{1, 1 << 8};
inline constexpr FlagRange kPrefillContextParallelSizeRange{1, 1 << 8};

}  // namespace ladder

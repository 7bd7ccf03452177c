#pragma once
// Task 3.1: what a request asks of the sampler. Plain, pointer-free and serialisable: it travels to worker
// processes.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ladder {

struct SamplingParams {
  int64_t max_tokens = 16;          // at least 1
  double temperature = 1.0;         // 0 is greedy
  int64_t top_k = 0;                // 0: off
  double top_p = 1.0;               // (0, 1]
  double min_p = 0.0;               // [0, 1]
  double repetition_penalty = 1.0;  // > 0; over prompt and output
  double presence_penalty = 0.0;    // [-2, 2]; over output
  double frequency_penalty = 0.0;   // [-2, 2]; over output
  std::optional<uint64_t> seed;     // none: the engine draws one
  int64_t n = 1;                    // completions per prompt
  std::vector<std::string> stop;    // stop strings; matched by the engine, not by the sampler
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  int64_t logprobs = -1;         // -1: none; K >= 0: the chosen token's and the K best
  int64_t prompt_logprobs = -1;  // the same for every prompt token (the score command)
  int32_t priority = 0;          // lower runs earlier under the priority policy
  std::string cache_salt;        // equal salts may share cached blocks

  bool operator==(const SamplingParams&) const = default;
};

// Error, naming the field and what was expected: NaN or out-of-range values, n outside 1..kMaxCompletions,
// too many or too long stop strings, ids outside the vocabulary.
inline constexpr int64_t kMaxCompletions = 256;
inline constexpr int64_t kMaxLogprobs = 64;
inline constexpr int64_t kMaxStopStrings = 16;
inline constexpr int64_t kMaxStopStringBytes = 256;
inline constexpr int64_t kMaxStopTokenIds = 256;
inline constexpr int64_t kMaxCacheSaltBytes = 1024;
void validate_sampling_params(const SamplingParams& params, int64_t vocab_size);

}  // namespace ladder

#pragma once
// Task 3.1: what a request asks of the sampler. Plain, pointer-free and serialisable: it travels to worker
// processes. Names and meanings are vLLM's.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ladder {

struct SamplingParams {
  std::optional<int64_t> max_tokens;  // at least 1; absent: to the end of max_model_len
  int64_t min_tokens = 0;             // before that many, no end token and no stop id is sampled
  double temperature = 1.0;           // 0 is greedy
  int64_t top_k = 0;                  // 0 or -1: off
  double top_p = 1.0;                 // (0, 1]
  double min_p = 0.0;                 // [0, 1]
  double repetition_penalty = 1.0;    // > 0; over prompt and output
  double presence_penalty = 0.0;      // [-2, 2]; over output
  double frequency_penalty = 0.0;     // [-2, 2]; over output
  std::optional<uint64_t> seed;       // none: the engine draws one
  int64_t n = 1;                      // completions per prompt

  std::map<int32_t, double> logit_bias;                   // token id -> [-100, 100], added to its logit
  std::vector<int32_t> allowed_token_ids;                 // empty: all
  std::vector<std::string> bad_words;                     // never completed in the output; as text ...
  std::vector<std::vector<int32_t>> bad_words_token_ids;  // ... and as the engine's tokenizer writes it

  std::vector<std::string> stop;  // stop strings; matched by the engine, not by the sampler
  std::vector<int32_t> stop_token_ids;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  bool ignore_eos = false;
  std::vector<int32_t> all_stop_token_ids;  // what min_tokens forbids: the scheduler adds the end tokens

  // Absent: none. K >= 0: the chosen token's and the K best; -1: the chosen token's and the whole
  // vocabulary's.
  std::optional<int64_t> logprobs;
  std::optional<int64_t> prompt_logprobs;  // the same for every prompt token (the score command)
  // Log probabilities of these tokens too, wherever there are some; alone they ask for `logprobs` 0.
  std::vector<int32_t> logprob_token_ids;

  int32_t priority = 0;    // lower runs earlier under the priority policy
  std::string cache_salt;  // equal salts may share cached blocks

  bool operator==(const SamplingParams&) const = default;
};

// What the sampler returns for each output token: absent, or K as above.
inline std::optional<int64_t> wanted_logprobs(const SamplingParams& params) {
  if (params.logprobs || params.logprob_token_ids.empty()) return params.logprobs;
  return 0;
}

// Error, one line that names the field and what was expected, where a field is outside the range that stands
// beside it above (a NaN is outside of each; temperature and repetition_penalty are finite), and where
//   n                     is not 1 .. kMaxCompletions
//   min_tokens            is below 0, or above max_tokens if that is set
//   logprobs, prompt_...  are set to something below -1 or above kMaxLogprobs
//   a list of ids         has one outside 0 .. vocab_size - 1, or is longer than its limit below (allowed_token_ids:
//                         than the vocabulary); so for the keys of logit_bias
//   bad_words, stop       hold more strings than their limit, an empty one, or one of too many bytes
//   bad_words_token_ids   holds more than 2 kMaxBadWords words, an empty one, or one of more than
//                         2 kMaxBadWordBytes ids
//   cache_salt            is longer than its limit
inline constexpr int64_t kMaxCompletions = 256;
inline constexpr int64_t kMaxLogprobs = 64;
inline constexpr int64_t kMaxLogprobTokenIds = 128;
inline constexpr int64_t kMaxLogitBias = 1024;
inline constexpr int64_t kMaxBadWords = 256;
inline constexpr int64_t kMaxBadWordBytes = 256;
inline constexpr int64_t kMaxStopStrings = 16;
inline constexpr int64_t kMaxStopStringBytes = 256;
inline constexpr int64_t kMaxStopTokenIds = 256;
inline constexpr int64_t kMaxCacheSaltBytes = 1024;
void validate_sampling_params(const SamplingParams& params, int64_t vocab_size);

// Error, naming the field: more log probabilities of a token than `max_logprobs`, where the whole vocabulary
// counts as vocab_size. -1: no limit. A token's take 8 bytes each, for every position of a prompt too.
void check_max_logprobs(const SamplingParams& params, int64_t vocab_size, int64_t max_logprobs);

}  // namespace ladder

#include "step3_sequence/sampling_params.h"

#include <cmath>
#include <limits>
#include <string_view>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

// A NaN compares false with everything, so it fails here too.
void check_range(std::string_view name, double value, double low, double high) {
  LADDER_CHECK(value >= low && value <= high, "{} must be between {} and {}, got {}", name, low, high, value);
}

}  // namespace

// >>> task 3.1: refuse every parameter that the sampler, the scheduler or a kernel could not serve
void validate_sampling_params(const SamplingParams& params, int64_t vocab_size) {
  LADDER_CHECK(params.max_tokens >= 1, "max_tokens must be at least 1, got {}", params.max_tokens);
  LADDER_CHECK(std::isfinite(params.temperature) && params.temperature >= 0,
               "temperature must be a finite number of at least 0, got {}", params.temperature);
  LADDER_CHECK(params.top_k >= 0, "top_k must be at least 0 (0: off), got {}", params.top_k);
  LADDER_CHECK(params.top_p > 0 && params.top_p <= 1, "top_p must be above 0 and at most 1, got {}",
               params.top_p);
  check_range("min_p", params.min_p, 0, 1);
  LADDER_CHECK(std::isfinite(params.repetition_penalty) && params.repetition_penalty > 0,
               "repetition_penalty must be a finite number above 0, got {}", params.repetition_penalty);
  check_range("presence_penalty", params.presence_penalty, -2, 2);
  check_range("frequency_penalty", params.frequency_penalty, -2, 2);
  LADDER_CHECK(params.n >= 1 && params.n <= kMaxCompletions, "n must be between 1 and {}, got {}",
               kMaxCompletions, params.n);
  LADDER_CHECK(params.logprobs >= -1 && params.logprobs <= kMaxLogprobs,
               "logprobs must be between 0 and {}, got {}", kMaxLogprobs, params.logprobs);
  LADDER_CHECK(params.prompt_logprobs >= -1 && params.prompt_logprobs <= kMaxLogprobs,
               "prompt_logprobs must be between 0 and {}, got {}", kMaxLogprobs, params.prompt_logprobs);

  LADDER_CHECK(std::ssize(params.stop) <= kMaxStopStrings, "stop may hold at most {} strings, got {}",
               kMaxStopStrings, params.stop.size());
  for (const std::string& stop : params.stop)
    LADDER_CHECK(!stop.empty() && std::ssize(stop) <= kMaxStopStringBytes,
                 "a stop string must have between 1 and {} bytes, got {}", kMaxStopStringBytes, stop.size());
  LADDER_CHECK(std::ssize(params.stop_token_ids) <= kMaxStopTokenIds,
               "stop_token_ids may hold at most {} ids, got {}", kMaxStopTokenIds,
               params.stop_token_ids.size());
  for (const int32_t id : params.stop_token_ids)
    LADDER_CHECK(id >= 0 && id < vocab_size,
                 "stop_token_ids: {} is not a token id, the vocabulary has 0 to {}", id, vocab_size - 1);
  LADDER_CHECK(std::ssize(params.cache_salt) <= kMaxCacheSaltBytes,
               "cache_salt may have at most {} bytes, got {}", kMaxCacheSaltBytes, params.cache_salt.size());
}
// <<< task 3.1

}  // namespace ladder

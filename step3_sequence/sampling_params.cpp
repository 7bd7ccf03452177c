#include "step3_sequence/sampling_params.h"

#include <cmath>
#include <limits>
#include <span>
#include <string_view>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

// A NaN compares false with everything, so it fails here too.
void check_range(std::string_view name, double value, double low, double high) {
  LADDER_CHECK(value >= low && value <= high, "{} must be between {} and {}, got {}", name, low, high, value);
}

void check_count(std::string_view name, size_t count, int64_t limit) {
  LADDER_CHECK(static_cast<int64_t>(count) <= limit, "{} may hold at most {} entries, got {}", name, limit,
               count);
}

// An id outside the vocabulary would be an index out of bounds in a kernel.
void check_id(std::string_view name, int32_t id, int64_t vocab_size) {
  LADDER_CHECK(id >= 0 && id < vocab_size, "{}: {} is not a token id, the vocabulary has 0 to {}", name, id,
               vocab_size - 1);
}

void check_ids(std::string_view name, std::span<const int32_t> ids, int64_t vocab_size, int64_t limit) {
  check_count(name, ids.size(), limit);
  for (const int32_t id : ids) check_id(name, id, vocab_size);
}

void check_text(std::string_view name, const std::string& text, int64_t limit) {
  LADDER_CHECK(!text.empty() && std::ssize(text) <= limit,
               "{}: a string must have between 1 and {} bytes, got {}", name, limit, text.size());
}

void check_num_logprobs(std::string_view name, std::optional<int64_t> count) {
  LADDER_CHECK(!count || (*count >= -1 && *count <= kMaxLogprobs),
               "{} must be between 0 and {}, or -1 for the whole vocabulary, got {}", name, kMaxLogprobs,
               *count);
}

}  // namespace

// >>> task 3.1: refuse every parameter that the sampler, the scheduler or a kernel could not serve
void validate_sampling_params(const SamplingParams& params, int64_t vocab_size) {
  LADDER_CHECK(!params.max_tokens || *params.max_tokens >= 1, "max_tokens must be at least 1, got {}",
               *params.max_tokens);
  LADDER_CHECK(params.min_tokens >= 0 && (!params.max_tokens || params.min_tokens <= *params.max_tokens),
               "min_tokens must be at least 0 and at most max_tokens, got {}", params.min_tokens);
  LADDER_CHECK(std::isfinite(params.temperature) && params.temperature >= 0,
               "temperature must be a finite number of at least 0, got {}", params.temperature);
  LADDER_CHECK(params.top_k >= -1, "top_k must be at least 1, or 0 or -1 for off, got {}", params.top_k);
  LADDER_CHECK(params.top_p > 0 && params.top_p <= 1, "top_p must be above 0 and at most 1, got {}",
               params.top_p);
  check_range("min_p", params.min_p, 0, 1);
  LADDER_CHECK(std::isfinite(params.repetition_penalty) && params.repetition_penalty > 0,
               "repetition_penalty must be a finite number above 0, got {}", params.repetition_penalty);
  check_range("presence_penalty", params.presence_penalty, -2, 2);
  check_range("frequency_penalty", params.frequency_penalty, -2, 2);
  LADDER_CHECK(params.n >= 1 && params.n <= kMaxCompletions, "n must be between 1 and {}, got {}",
               kMaxCompletions, params.n);
  check_num_logprobs("logprobs", params.logprobs);
  check_num_logprobs("prompt_logprobs", params.prompt_logprobs);
  check_ids("logprob_token_ids", params.logprob_token_ids, vocab_size, kMaxLogprobTokenIds);

  check_count("logit_bias", params.logit_bias.size(), kMaxLogitBias);
  for (const auto& [id, bias] : params.logit_bias) {
    check_id("logit_bias", id, vocab_size);
    check_range("logit_bias", bias, -100, 100);
  }
  check_ids("allowed_token_ids", params.allowed_token_ids, vocab_size, vocab_size);
  check_count("bad_words", params.bad_words.size(), kMaxBadWords);
  for (const std::string& word : params.bad_words) check_text("bad_words", word, kMaxBadWordBytes);
  check_count("bad_words_token_ids", params.bad_words_token_ids.size(), 2 * kMaxBadWords);
  for (const std::vector<int32_t>& word : params.bad_words_token_ids) {
    LADDER_CHECK(!word.empty(), "bad_words_token_ids: a word must have at least one token");
    check_ids("bad_words_token_ids", word, vocab_size, 2 * kMaxBadWordBytes);
  }

  check_count("stop", params.stop.size(), kMaxStopStrings);
  for (const std::string& stop : params.stop) check_text("stop", stop, kMaxStopStringBytes);
  check_ids("stop_token_ids", params.stop_token_ids, vocab_size, kMaxStopTokenIds);
  LADDER_CHECK(std::ssize(params.cache_salt) <= kMaxCacheSaltBytes,
               "cache_salt may have at most {} bytes, got {}", kMaxCacheSaltBytes, params.cache_salt.size());
}
// <<< task 3.1

void check_max_logprobs(const SamplingParams& params, int64_t vocab_size, int64_t max_logprobs) {
  const auto check = [&](std::string_view name, std::optional<int64_t> count) {
    const int64_t wanted = count == -1 ? vocab_size : count.value_or(0);
    LADDER_CHECK(max_logprobs == -1 || wanted <= max_logprobs,
                 "{}: {} log probabilities of a token are asked for, --max-logprobs is {}", name, wanted,
                 max_logprobs);
  };
  check("logprobs", params.logprobs);
  check("prompt_logprobs", params.prompt_logprobs);
}

}  // namespace ladder

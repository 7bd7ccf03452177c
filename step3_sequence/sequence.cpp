#include "step3_sequence/sequence.h"

#include <algorithm>

#include "step1_layers/core/error.h"

namespace ladder {

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::none:
      return "";
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::abort:
      return "abort";
    case FinishReason::error:
      return "error";
  }
  return "";
}

// >>> task 3.1: the n sequences of a request, and the token that ends one
std::vector<std::unique_ptr<Sequence>> make_sequences(std::vector<int32_t> prompt_token_ids,
                                                      const SamplingParams& sampling, SequenceId first_id) {
  LADDER_CHECK(sampling.seed.has_value(), "a sequence needs a seed");
  LADDER_CHECK(sampling.max_tokens.has_value(), "a sequence needs max_tokens");
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int64_t i = 0; i < sampling.n; ++i) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = sequence->arrival = first_id + i;
    sequence->first_sibling = first_id;
    sequence->completion_index = i;
    sequence->sampling = sampling;
    sequence->sampling.seed = *sampling.seed + static_cast<uint64_t>(i);
    if (i > 0) sequence->sampling.prompt_logprobs.reset();
    sequence->num_prompt_tokens = std::ssize(prompt_token_ids);
    sequence->token_ids = prompt_token_ids;
    sequence->prefix.salt = sampling.cache_salt;
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

void validate_prompt(const std::vector<int32_t>& prompt_token_ids, int64_t vocab_size) {
  LADDER_CHECK(!prompt_token_ids.empty(), "the prompt is empty; it needs at least one token");
  for (size_t i = 0; i < prompt_token_ids.size(); ++i)
    LADDER_CHECK(prompt_token_ids[i] >= 0 && prompt_token_ids[i] < vocab_size,
                 "prompt token {}: {} is not a token id, the vocabulary has 0 to {}", i, prompt_token_ids[i],
                 vocab_size - 1);
}

FinishReason append_token(Sequence& sequence, int32_t token_id, const std::vector<int32_t>& eos_token_ids) {
  sequence.token_ids.push_back(token_id);
  const auto holds = [token_id](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token_id) != ids.end();
  };
  if (!sequence.sampling.ignore_eos && holds(eos_token_ids)) return FinishReason::stop;
  if (holds(sequence.sampling.stop_token_ids)) return FinishReason::stop;
  if (sequence.num_output_tokens() >= *sequence.sampling.max_tokens) return FinishReason::length;
  return FinishReason::none;
}
// <<< task 3.1

}  // namespace ladder

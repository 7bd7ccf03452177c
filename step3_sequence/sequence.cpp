// The simple version, one completion per request:
//
//   make_sequences(prompt, sampling, id):
//     return [Sequence(id, prompt, sampling)]
//   append_token(sequence, token):
//     sequence.output.append(token)
//     if token in end_tokens: return "stop"
//     if len(sequence.output) == max_tokens: return "length"
//     return "none"
//
// What each further line buys: n completions share one prompt and the hashes of its blocks, and draw
// differently, each with a seed of its own; ignore_eos, stop ids and min_tokens say which token ends a
// sequence, and stop_token_id which one did.
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
  const auto prompt = std::make_shared<const std::vector<int32_t>>(std::move(prompt_token_ids));
  const auto prompt_hashes = std::make_shared<std::vector<BlockHash>>();
  for (int64_t i = 0; i < sampling.n; ++i) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = sequence->arrival = first_id + i;
    sequence->first_sibling = first_id;
    sequence->completion_index = i;
    sequence->sampling = sampling;
    sequence->sampling.seed = *sampling.seed + static_cast<uint64_t>(i);
    if (i > 0) sequence->sampling.prompt_logprobs.reset();
    sequence->num_prompt_tokens = std::ssize(*prompt);
    sequence->prompt_token_ids = prompt;
    sequence->prefix.salt = sampling.cache_salt;
    sequence->prefix.prompt_hashes = prompt_hashes;
    sequence->prefix.num_prompt_tokens = sequence->num_prompt_tokens;
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
  sequence.output_token_ids.push_back(token_id);
  const auto holds = [token_id](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token_id) != ids.end();
  };
  const SamplingParams& sampling = sequence.sampling;
  if (sequence.num_output_tokens() >= sampling.min_tokens) {
    if (!sampling.ignore_eos && holds(eos_token_ids)) return FinishReason::stop;
    if (holds(sampling.stop_token_ids)) {
      sequence.stop_token_id = token_id;
      return FinishReason::stop;
    }
  }
  if (sequence.num_output_tokens() >= *sampling.max_tokens) return FinishReason::length;
  return FinishReason::none;
}
// <<< task 3.1

}  // namespace ladder

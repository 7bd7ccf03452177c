#include "step6_engine/text/completion_text.h"

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

CompletionText::CompletionText(const Tokenizer* tokenizer, const SamplingParams& sampling)
    : tokenizer_(tokenizer),
      stops_(sampling.stop, sampling.include_stop_str_in_output),
      include_stop_(sampling.include_stop_str_in_output),
      min_tokens_(sampling.min_tokens) {
  if (tokenizer != nullptr) decoder_.emplace(*tokenizer, sampling.skip_special_tokens);
}

// >>> task 6.2: tokens to certain text, and the finish reason of a completion
CompletionText::Appended CompletionText::append(std::span<const int32_t> token_ids,
                                                FinishReason finish_reason) {
  Appended result;
  result.num_tokens = static_cast<int64_t>(token_ids.size());
  result.finish_reason = finish_reason;
  if (!decoder_) return result;

  for (size_t i = 0; i < token_ids.size(); ++i) {
    const bool last = i + 1 == token_ids.size();
    ++num_tokens_;
    if (last && finish_reason == FinishReason::stop && !include_stop_) break;  // what stopped it
    // A model's vocabulary may be larger than its tokenizer's: such a token has no text.
    if (!tokenizer_->has_token(token_ids[i])) continue;
    result.text += stops_.append(decoder_->push(token_ids[i]), num_tokens_ > min_tokens_);
    if (stops_.matched()) {
      result.num_tokens = static_cast<int64_t>(i) + 1;
      result.finish_reason = FinishReason::stop;
      result.stop_string = stops_.match();
      return result;
    }
  }
  if (finish_reason != FinishReason::none) {
    result.text += stops_.append(decoder_->finish(), num_tokens_ > min_tokens_);
    if (stops_.matched()) {
      result.finish_reason = FinishReason::stop;
      result.stop_string = stops_.match();
    }
    result.text += stops_.finish();
  }
  return result;
}
// <<< task 6.2

}  // namespace ladder

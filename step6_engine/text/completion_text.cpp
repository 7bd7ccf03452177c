#include "step6_engine/text/completion_text.h"

namespace ladder {

CompletionText::CompletionText(const Tokenizer* tokenizer, std::vector<std::string> stops)
    : tokenizer_(tokenizer), stops_(std::move(stops)) {
  if (tokenizer != nullptr) decoder_.emplace(*tokenizer, true);
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
    if (last && finish_reason == FinishReason::stop) break;  // the token that stopped the sequence
    // A model's vocabulary may be larger than its tokenizer's: such a token has no text.
    if (!tokenizer_->has_token(token_ids[i])) continue;
    result.text += stops_.append(decoder_->push(token_ids[i]));
    if (stops_.matched()) {
      result.num_tokens = static_cast<int64_t>(i) + 1;
      result.finish_reason = FinishReason::stop;
      return result;
    }
  }
  if (finish_reason != FinishReason::none) {
    result.text += stops_.append(decoder_->finish());
    if (stops_.matched()) result.finish_reason = FinishReason::stop;
    result.text += stops_.finish();
  }
  return result;
}
// <<< task 6.2

}  // namespace ladder

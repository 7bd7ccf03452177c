// From ids back to text, all at once and token by token.
#include "step1_layers/core/task_not_implemented.h"
#include "step2_model/tokenizer/tokenizer.h"
#include "step2_model/tokenizer/unicode.h"

namespace ladder {

// >>> task 2.5.decode: only whole characters leave, and what can never become one leaves as U+FFFD
std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  if (text_decoder_) {
    IncrementalDecoder decoder(*this, skip_special);
    std::string text;
    for (const int32_t id : ids) text += decoder.push(id);
    return text + decoder.finish();
  }
  std::string bytes;
  for (const int32_t id : ids) {
    const std::string_view token = token_bytes(id);
    if (!(skip_special && is_special(id))) bytes.append(token);
  }
  if (utf8_valid_prefix(bytes) == static_cast<int64_t>(bytes.size())) return bytes;
  std::string text;
  utf8_append_replaced(text, bytes);
  return text;
}

std::string IncrementalDecoder::push(int32_t id) {
  const std::string_view bytes = tokenizer_->token_bytes(id);
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  std::string text;
  if (tokenizer_->text_decoder_) {
    tokenizer_->text_decoder_->push(decoder_state_, tokenizer_->written_.bytes(id), text);
    return text;
  }
  pending_.append(bytes);
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const auto valid = static_cast<size_t>(utf8_valid_prefix(rest));
    text.append(rest.substr(0, valid));
    rest.remove_prefix(valid);
    if (rest.empty()) break;
    const Utf8Step step = utf8_step(rest);
    if (!step.complete) break;
    text.append("\xef\xbf\xbd");
    rest.remove_prefix(static_cast<size_t>(step.length));
  }
  pending_ = std::string(rest);
  return text;
}

std::string IncrementalDecoder::finish() {
  std::string text;
  if (tokenizer_->text_decoder_) tokenizer_->text_decoder_->finish(decoder_state_, text);
  utf8_append_replaced(text, pending_);
  pending_.clear();
  return text;
}
// <<< task 2.5.decode

}  // namespace ladder

#include "step2_model/tokenizer/added_tokens.h"

#include <algorithm>

#include "step1_layers/core/task_not_implemented.h"
#include "step2_model/tokenizer/unicode.h"

namespace ladder {
namespace {

// The character that ends at `end`; its length in bytes too.
Utf8Char character_before(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while ((text[begin] & 0xc0) == 0x80) --begin;
  return utf8_decode(text.data() + begin);
}

bool has_class(const Utf8Char& character, UnicodeClass wanted) {
  return (unicode_classes(character.code_point) & wanted) != 0;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), is_first_byte_(256) {
  std::sort(tokens_.begin(), tokens_.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (const AddedToken& token : tokens_) is_first_byte_[static_cast<uint8_t>(token.content[0])] = true;
}

// Sorted strings with a common beginning are neighbours, and the beginning itself comes first: one binary
// search per byte narrows the candidates down.
const AddedToken* AddedTokenFinder::longest_at(std::string_view text) const {
  const AddedToken* longest = nullptr;
  auto low = tokens_.begin(), high = tokens_.end();
  for (size_t depth = 0; depth < text.size() && low != high; ++depth) {
    const auto byte = static_cast<uint8_t>(text[depth]);
    const auto at_depth = [depth](const AddedToken& token) {
      return depth < token.content.size() ? static_cast<int>(static_cast<uint8_t>(token.content[depth])) : -1;
    };
    low = std::partition_point(low, high, [&](const AddedToken& token) { return at_depth(token) < byte; });
    high = std::partition_point(low, high, [&](const AddedToken& token) { return at_depth(token) == byte; });
    if (low != high && low->content.size() == depth + 1) longest = &*low;
  }
  return longest;
}

// >>> task 2.5.added: find the added tokens: leftmost first, of those the longest, with their rules about neighbours
std::vector<TextPart> AddedTokenFinder::split(std::string_view text, std::span<const TextStretch> stretches,
                                              std::span<const int32_t> control_ids) const {
  std::vector<TextPart> parts;
  const auto put = [&parts](size_t begin, size_t end, const AddedToken* token) {
    if (begin < end) parts.push_back({static_cast<int64_t>(begin), static_cast<int64_t>(end), token});
  };
  const auto is_control = [&](const AddedToken* token) {
    return token != nullptr && (token->special || std::find(control_ids.begin(), control_ids.end(),
                                                            token->id) != control_ids.end());
  };
  size_t plain = 0;  // where the plain text that is not yet a part begins
  for (size_t at = 0; !empty() && at < text.size();) {
    const AddedToken* token =
        is_first_byte_[static_cast<uint8_t>(text[at])] ? longest_at(text.substr(at)) : nullptr;
    if (is_control(token)) {
      while (static_cast<size_t>(stretches.front().end) <= at) stretches = stretches.subspan(1);
      const auto end = static_cast<size_t>(stretches.front().end);
      if (at + token->content.size() > end) token = longest_at(text.substr(at, end - at));
      if (is_control(token) && !stretches.front().trusted) {
        at += token->content.size();
        continue;
      }
    }
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->content.size();
    at = end;
    if (token->single_word) {
      const bool word_before = begin > 0 && has_class(character_before(text, begin), kWord);
      const bool word_after = end < text.size() && has_class(utf8_decode(text.data() + end), kWord);
      if (word_before || word_after) continue;
    }
    if (token->lstrip) {
      while (begin > plain && has_class(character_before(text, begin), kSpace))
        begin -= static_cast<size_t>(character_before(text, begin).length);
    }
    if (token->rstrip) {
      while (end < text.size() && has_class(utf8_decode(text.data() + end), kSpace))
        end += static_cast<size_t>(utf8_decode(text.data() + end).length);
    }
    // A token may begin with spaces that the one before it includes.
    begin = std::max(begin, plain);
    put(plain, begin, nullptr);
    put(begin, end, token);
    plain = std::max(plain, end);
  }
  put(plain, text.size(), nullptr);
  return parts;
}
// <<< task 2.5.added

}  // namespace ladder

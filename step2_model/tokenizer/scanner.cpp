#include "step2_model/tokenizer/scanner.h"

#include "step1_layers/core/task_not_implemented.h"
#include "step2_model/tokenizer/unicode.h"

namespace ladder {
namespace {

constexpr std::string_view kGpt2Text =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Text =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
    R"(\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Text =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
    R"(\s+(?!\S)|\s+)";

struct Scanner {
  const char* end;
  const uint8_t* ascii = detail::unicode_table.classes[detail::unicode_table.block[0]];

  uint8_t classes_at(const char* at, int32_t& length) const {
    const auto byte = static_cast<uint8_t>(*at);
    if (byte < 0x80) [[likely]] {
      length = 1;
      return ascii[byte];
    }
    const Utf8Char character = utf8_decode(at);
    length = character.length;
    return unicode_classes(character.code_point);
  }

  bool is_letter_at(const char* at) const {
    int32_t length;
    return at < end && (classes_at(at, length) & kLetter) != 0;
  }

  // Past the characters from `at` on whose classes within `mask` are exactly `value` (0: none of them) or any
  // of them (value = mask, one bit).
  template <int mask, int value>
  const char* skip(const char* at) const {
    int32_t length;
    while (at < end && (classes_at(at, length) & mask) == value) at += length;
    return at;
  }
  const char* skip_letters(const char* at) const { return skip<kLetter, kLetter>(at); }
  const char* skip_spaces(const char* at) const { return skip<kSpace, kSpace>(at); }
  const char* skip_others(const char* at) const { return skip<kLetter | kNumber | kSpace, 0>(at); }

  const char* skip_numbers(const char* at, int max) const {
    int32_t length;
    for (; max > 0 && at < end && (classes_at(at, length) & kNumber) != 0; --max) at += length;
    return at;
  }

  // 's 't 're 've 'm 'll 'd at an apostrophe: their length, or 0. Without regard to case the long s (U+017F)
  // is an s.
  int contraction(const char* at, bool any_case) const {
    const auto left = end - at;
    if (left < 2) return 0;
    const char fold = any_case ? 0x20 : 0;
    switch (at[1] | fold) {
      case 's':
      case 't':
      case 'm':
      case 'd':
        return 2;
      case 'r':
      case 'v':
        return left > 2 && (at[2] | fold) == 'e' ? 3 : 0;
      case 'l':
        return left > 2 && (at[2] | fold) == 'l' ? 3 : 0;
      default:
        return any_case && left > 2 && at[1] == '\xc5' && at[2] == '\xbf' ? 3 : 0;
    }
  }

  // `\s+(?!\S)|\s+` on the spaces from `at` to `run_end`: all of them at the end of the text, else all but
  // the last, which goes with the next word.
  const char* spaces_before_word(const char* at, const char* run_end) const {
    if (run_end == end) return run_end;
    const char* last = run_end - 1;
    while ((*last & 0xc0) == 0x80) --last;
    return last > at ? last : run_end;
  }
};

// >>> task 2.5.scanner: one piece of the text per call, by the alternatives of the pattern in their order
const char* next_piece_gpt2(const Scanner& scan, const char* at) {
  if (*at == '\'') {
    if (const int length = scan.contraction(at, false)) return at + length;
  }
  const char* word = *at == ' ' && at + 1 < scan.end ? at + 1 : at;
  int32_t length;
  const uint8_t classes = scan.classes_at(word, length);
  if (classes & kLetter) return scan.skip_letters(word + length);
  if (classes & kNumber) return scan.skip<kNumber, kNumber>(word + length);
  if (!(classes & kSpace)) return scan.skip_others(word + length);
  return scan.spaces_before_word(at, scan.skip_spaces(at));
}

const char* next_piece_qwen2(const Scanner& scan, const char* at, int max_numbers) {
  int32_t length;
  const uint8_t classes = scan.classes_at(at, length);
  const char* next = at + length;
  if (classes & kLetter) return scan.skip_letters(next);
  if (classes & kNumber) return scan.skip_numbers(next, max_numbers - 1);
  if (*at == '\'') {
    if (const int found = scan.contraction(at, true)) return at + found;
  }
  const auto is_newline = [](char c) { return c == '\r' || c == '\n'; };
  if (!is_newline(*at) && scan.is_letter_at(next)) return scan.skip_letters(next);

  const char* others = *at == ' ' ? next : at;
  const char* others_end = scan.skip_others(others);
  if (others_end > others) {
    while (others_end < scan.end && is_newline(*others_end)) ++others_end;
    return others_end;
  }
  const char* run_end = scan.skip_spaces(at);
  for (const char* newline = run_end; newline > at; --newline)
    if (is_newline(newline[-1])) return newline;
  return scan.spaces_before_word(at, run_end);
}
// <<< task 2.5.scanner

}  // namespace

std::string_view known_pattern_text(KnownPattern pattern) {
  return pattern == KnownPattern::kGpt2    ? kGpt2Text
         : pattern == KnownPattern::kQwen2 ? kQwen2Text
                                           : kLlama3Text;
}

std::optional<KnownPattern> find_known_pattern(std::string_view text) {
  for (const KnownPattern pattern : {KnownPattern::kGpt2, KnownPattern::kQwen2, KnownPattern::kLlama3})
    if (text == known_pattern_text(pattern)) return pattern;
  return std::nullopt;
}

void scan_pieces(KnownPattern pattern, std::string_view text, int64_t offset, std::vector<int64_t>& ends) {
  const char* begin = text.data();
  const Scanner scan{begin + text.size()};
  const auto emit = [&](const char* at) { ends.push_back(offset + (at - begin)); };
  const char* at = begin;
  if (pattern == KnownPattern::kGpt2) {
    while (at < scan.end) emit(at = next_piece_gpt2(scan, at));
  } else {
    const int max_numbers = pattern == KnownPattern::kQwen2 ? 1 : 3;
    while (at < scan.end) emit(at = next_piece_qwen2(scan, at, max_numbers));
  }
}

}  // namespace ladder

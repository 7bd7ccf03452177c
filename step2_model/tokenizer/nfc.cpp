#include "step2_model/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "step1_layers/core/error.h"
#include "step2_model/tokenizer/unicode.h"

namespace ladder {
namespace {

bool is_mark(uint32_t code_point) {
  return (unicode_classes(code_point) & kNfcMark) != 0;
}

// The position of the first mark at or after `from`; `base` becomes the position of the character before it.
size_t find_mark(std::string_view text, size_t from, size_t& base) {
  base = from;
  size_t at = from;
  while (at < text.size()) {
    uint64_t word;
    if (at + 8 <= text.size() &&
        (std::memcpy(&word, text.data() + at, 8), (word & 0x8080808080808080ull) == 0)) {
      base = at + 7;
      at += 8;
      continue;
    }
    const Utf8Char character = utf8_decode(text.data() + at);
    if (is_mark(character.code_point)) return at;
    base = at;
    at += static_cast<size_t>(character.length);
  }
  return at;
}

// >>> task 2.5.nfc: normalize one base character with the marks after it (decompose, order the marks, compose)
int combining_class(int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

void append_nfc(std::string& out, std::string_view piece) {
  std::vector<int32_t> characters;
  for (size_t at = 0; at < piece.size();) {
    const Utf8Char character = utf8_decode(piece.data() + at);
    at += static_cast<size_t>(character.length);
    int32_t parts[8];
    int last_boundclass = 0;
    const auto count = utf8proc_decompose_char(
        static_cast<int32_t>(character.code_point), parts, 8,
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &last_boundclass);
    LADDER_CHECK(count >= 0 && count <= 8, "NFC: utf8proc failed on U+{:04X}", character.code_point);
    characters.insert(characters.end(), parts, parts + count);
  }
  // Marks are ordered by class between two characters that are none; utf8proc's own ordering takes quadratic
  // time on a long run of them.
  for (auto begin = characters.begin(); begin != characters.end();) {
    begin = std::find_if(begin, characters.end(), [](int32_t c) { return combining_class(c) != 0; });
    const auto end = std::find_if(begin, characters.end(), [](int32_t c) { return combining_class(c) == 0; });
    std::stable_sort(begin, end,
                     [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
  const auto count =
      utf8proc_normalize_utf32(characters.data(), static_cast<utf8proc_ssize_t>(characters.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  LADDER_CHECK(count >= 0, "NFC: utf8proc failed: {}", utf8proc_errmsg(count));
  for (utf8proc_ssize_t i = 0; i < count; ++i)
    utf8_append(out, static_cast<uint32_t>(characters[static_cast<size_t>(i)]));
}
// <<< task 2.5.nfc

}  // namespace

std::optional<std::string> normalize_nfc(std::string_view text) {
  size_t base;
  size_t mark = find_mark(text, 0, base);
  if (mark == text.size()) return std::nullopt;

  std::string out;
  out.reserve(text.size() + 16);
  size_t copied = 0;
  while (mark < text.size()) {
    size_t end = mark;
    while (end < text.size()) {
      const Utf8Char character = utf8_decode(text.data() + end);
      if (!is_mark(character.code_point)) break;
      end += static_cast<size_t>(character.length);
    }
    const bool with_base =
        base < mark && (unicode_classes(utf8_decode(text.data() + base).code_point) & kNfcBase) != 0;
    const size_t begin = with_base ? base : mark;
    out.append(text.substr(copied, begin - copied));
    append_nfc(out, text.substr(begin, end - begin));
    copied = end;
    mark = find_mark(text, end, base);
  }
  out.append(text.substr(copied));
  if (out == text) return std::nullopt;
  return out;
}

}  // namespace ladder

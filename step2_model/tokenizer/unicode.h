#pragma once
// UTF-8 and the few classes of characters that a byte-level BPE tokenizer asks about.
//
// The classes come from a table made from Hugging Face tokenizers itself (tools/make_unicode_classes.py),
// because equal token ids need equal answers to "is this a letter", and every library has its own Unicode
// version.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ladder {

// Bits of a code point's class.
enum UnicodeClass : uint8_t {
  kLetter = 1,    // \p{L}
  kNumber = 2,    // \p{N}
  kSpace = 4,     // \s
  kWord = 8,      // \w, as Rust's regex crate has it
  kNfcMark = 16,  // normalization may reorder it, replace it, or merge it into the character before it
  kNfcBase = 32,  // a mark may be merged into it
  kRecent = 64,   // a letter or number that Unicode 14 does not have
};

struct UnicodeRange {
  uint32_t first, last;
  uint8_t classes;
};

// All ranges with a class, ascending.
std::span<const UnicodeRange> unicode_ranges();

namespace detail {
struct UnicodeTable {
  uint8_t block[0x110000 / 256];  // which of the distinct blocks of 256 code points
  uint8_t classes[256][256];
};
extern const UnicodeTable& unicode_table;
}  // namespace detail

// The classes of a code point below 0x110000.
inline uint8_t unicode_classes(uint32_t code_point) {
  const detail::UnicodeTable& table = detail::unicode_table;
  return table.classes[table.block[code_point >> 8]][code_point & 255];
}

struct Utf8Char {
  uint32_t code_point;
  int32_t length;  // bytes, 1..4
};

// The character at `text`, which must be the start of a valid one.
inline Utf8Char utf8_decode(const char* text) {
  const auto byte = [text](int i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[i])); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xe0) return {(lead & 0x1f) << 6 | (byte(1) & 0x3f), 2};
  if (lead < 0xf0) return {(lead & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f), 3};
  return {(lead & 7) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f), 4};
}

// Appends the code point (below 0x110000, no surrogate) as UTF-8.
void utf8_append(std::string& text, uint32_t code_point);

// What stands at the beginning of a text: `length` bytes that are one valid character, or (valid = false) the
// longest beginning of a character that breaks off, which Unicode's recommendation replaces by one U+FFFD, at
// least one byte. `complete` is false where more text could still make it valid.
struct Utf8Step {
  int32_t length;
  bool valid;
  bool complete;
};
Utf8Step utf8_step(std::string_view text);

// The length of the longest valid beginning of the text.
int64_t utf8_valid_prefix(std::string_view text);

// Appends `text`, each broken piece replaced by U+FFFD (as Rust's from_utf8_lossy and Python's "replace" do).
void utf8_append_replaced(std::string& out, std::string_view text);

}  // namespace ladder

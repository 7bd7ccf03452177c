#include "step2_model/tokenizer/unicode.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

namespace ladder {
namespace {

constexpr UnicodeRange kRanges[] = {
#include "step2_model/tokenizer/unicode_classes.inc"
};

// One class byte per code point would be 1.1 MB; most blocks of 256 are alike, so that some 150 of them are
// enough.
const detail::UnicodeTable& build_table() {
  static detail::UnicodeTable table;
  std::vector<uint8_t> flat(0x110000, 0);
  for (const UnicodeRange& range : kRanges)
    std::fill(flat.begin() + range.first, flat.begin() + range.last + 1, range.classes);
  std::map<std::string_view, int> blocks;
  for (int i = 0; i < 0x110000 / 256; ++i) {
    const std::string_view block(reinterpret_cast<const char*>(flat.data()) + i * 256, 256);
    const auto [position, is_new] = blocks.emplace(block, static_cast<int>(blocks.size()));
    if (is_new) std::memcpy(table.classes[position->second], block.data(), 256);
    table.block[i] = static_cast<uint8_t>(position->second);
  }
  return table;
}

}  // namespace

const detail::UnicodeTable& detail::unicode_table = build_table();

std::span<const UnicodeRange> unicode_ranges() {
  return kRanges;
}

void utf8_append(std::string& text, uint32_t code_point) {
  const auto put = [&text](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xc0 | code_point >> 6);
    put(0x80 | (code_point & 0x3f));
  } else if (code_point < 0x10000) {
    put(0xe0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3f));
    put(0x80 | (code_point & 0x3f));
  } else {
    put(0xf0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3f));
    put(0x80 | (code_point >> 6 & 0x3f));
    put(0x80 | (code_point & 0x3f));
  }
}

Utf8Step utf8_step(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, true, true};
  if (lead < 0xc2 || lead > 0xf4) return {1, false, true};
  const int32_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // The second byte has a narrower range after four lead bytes: no overlong forms, surrogates, or beyond
  // 10FFFF.
  const uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (int32_t i = 1; i < length; ++i) {
    if (i == static_cast<int32_t>(text.size())) return {i, false, false};
    const uint8_t next = byte(static_cast<size_t>(i));
    if (next < (i == 1 ? low : 0x80) || next > (i == 1 ? high : 0xbf)) return {i, false, true};
  }
  return {length, true, true};
}

int64_t utf8_valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t word;
    while (at + 8 <= text.size()) {  // eight ASCII bytes at a time
      std::memcpy(&word, text.data() + at, 8);
      if (word & 0x8080808080808080ull) break;
      at += 8;
    }
    if (at == text.size()) break;
    const Utf8Step step = utf8_step(text.substr(at, 4));
    if (!step.valid) break;
    at += static_cast<size_t>(step.length);
  }
  return static_cast<int64_t>(at);
}

void utf8_append_replaced(std::string& out, std::string_view text) {
  while (!text.empty()) {
    const auto valid = static_cast<size_t>(utf8_valid_prefix(text));
    out.append(text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) break;
    out.append("\xef\xbf\xbd");
    text.remove_prefix(static_cast<size_t>(utf8_step(text).length));
  }
}

}  // namespace ladder

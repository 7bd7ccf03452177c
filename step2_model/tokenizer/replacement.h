#pragma once
// `Replace` of tokenizer.json, which is a normalizer and a decoder: one string for another. SentencePiece's way
// to keep spaces is such a pair: " " becomes "▁" (U+2581) before merging, and "▁" becomes " " in what is decoded.
#include <algorithm>
#include <string>
#include <string_view>

#include "step2_model/json.h"

namespace ladder {

struct Replacement {
  static constexpr size_t kMaxBytes = 256;  // of either string
  std::string pattern, content;

  // From {"type": "Replace", "pattern": {"String": ...}, "content": ...}. Error: a pattern that is empty or a
  // Regex; strings longer than kMaxBytes.
  static Replacement parse(const Json& value, std::string_view what);

  // The text with each occurrence replaced, from left to right; they do not overlap.
  std::string apply(std::string_view text) const;

  // How many times as long a text can become.
  size_t growth() const {
    return std::max<size_t>(1, (content.size() + pattern.size() - 1) / pattern.size());
  }
};

// What the replacements of one file may do to a text together, so that a small file cannot ask for all memory.
inline constexpr size_t kMaxGrowth = 4096;

}  // namespace ladder

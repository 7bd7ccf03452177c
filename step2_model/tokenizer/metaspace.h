#pragma once
// `Metaspace` of tokenizer.json, which is a pre-tokenizer and a decoder: spaces are written as another character,
// "▁" (U+2581), and a text that does not begin with one gets one, so that a word is the same token at the
// beginning of a text and within it (Kudo and Richardson 2018, SentencePiece: add_dummy_prefix).
//
//     "the mill"  ->  "▁the▁mill"       and back: "▁the" "▁mill"  ->  "the mill"
#include <string>
#include <string_view>

#include "step2_model/json.h"

namespace ladder {

struct Metaspace {
  // kFirst: only at the beginning of the whole text, not after an added token.
  enum class Prepend { kAlways, kFirst, kNever };

  std::string replacement = "\u2581";  // one character
  Prepend prepend = Prepend::kAlways;
  bool split = true;  // each replacement begins a piece

  // From the JSON object. `prepend_scheme` decides; add_prefix_space, of older files, must not contradict it.
  static Metaspace parse(const Json& value, std::string_view what);

  // The text with its spaces written as `replacement`, and one before it where the scheme asks for it; `first`:
  // the text begins where the whole one does.
  std::string mark(std::string_view text, bool first) const;

  // A token's text: each replacement is a space, and none in the first token of a text, unless the scheme is
  // kNever.
  std::string unmark(std::string_view token, bool first) const;
};

}  // namespace ladder

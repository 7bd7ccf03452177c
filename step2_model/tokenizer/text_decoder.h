#pragma once
// The `decoder` of a tokenizer.json of the SentencePiece kind: tokens as they are written become text.
//
//     <s>  ▁The  ▁ge  <0xC3>  <0xB6>  ffnet        tokens
//     <s>   The   ge  <0xC3>  <0xB6>  ffnet        Replace "▁" by " "
//     <s>   The   ge       ö          ffnet        ByteFallback: a run of byte tokens is UTF-8, or each byte is U+FFFD
//     <s> The geöffnet                             Fuse: what follows sees one text, no longer tokens
//
// Then Strip takes the " " that stands before a text that begins with a word. Supported: `Replace` of a string,
// `Metaspace`, `ByteFallback` (once), `Fuse`, `Strip` at the start, and a `Sequence` of them; behind Fuse only
// Strip.
//
// The bytes of a run count as a whole, as in Hugging Face tokenizers: one that is no part of a character makes all
// of them U+FFFD. So nothing of a run is certain before it ends, and until then it is held back.
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "step2_model/json.h"
#include "step2_model/tokenizer/metaspace.h"
#include "step2_model/tokenizer/replacement.h"

namespace ladder {

class TextDecoder {
 public:
  // From the JSON value; `what` is how errors call it.
  static TextDecoder parse(const Json& value, std::string_view what);

  // How far a text is decoded.
  struct State {
    std::string bytes;        // of the run of byte tokens that has not ended
    bool token_seen = false;  // a token has come
    bool unit_seen = false;   // a token that is no byte, or a run of bytes, has left
    int64_t stripped = 0;     // characters taken from the start of the text; -1: its start is past
  };

  // Appends to `text` what is certain after one more token, as it is written in the file. Whole characters only.
  void push(State& state, std::string_view written, std::string& text) const;
  // Appends what is left when no more tokens come.
  void finish(State& state, std::string& text) const;

  // The bytes that a token stands for within a text.
  std::string bytes_of(std::string_view written) const;

 private:
  struct Strip {
    std::string character;
    int64_t start = 0;  // at most so many of them are taken away
  };
  using Stage = std::variant<Replacement, Metaspace, Strip>;
  void add_stage(const Json& value, std::string_view what);
  static std::string apply(const std::vector<Stage>& stages, std::string_view text, bool first);
  // The byte that a token stands for, written <0x0A>; -1: it is none.
  int byte_of(std::string_view token) const;
  // Ends the run of bytes, and appends a token, or what a run of bytes is, after the last stages.
  void end_run(State& state, std::string& text) const;
  void append_unit(State& state, std::string_view unit, std::string& text) const;

  std::vector<Stage> before_, after_;  // ByteFallback; without it all are before
  bool byte_fallback_ = false, fused_ = false;
  Strip strip_;  // behind Fuse
  size_t growth_ = 1;
};

}  // namespace ladder

#pragma once
// The `pre_tokenizer` of tokenizer.json: cuts a text into the pieces within which BPE merges. No merge
// crosses the end of a piece.
//
// Supported: `ByteLevel`, `Split` by a regex with behavior Isolated, `Digits`, and a `Sequence` of those that
// ends in ByteLevel. ByteLevel also says that a token's text is spelled in the byte alphabet
// (byte_alphabet.h).
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "step2_model/json.h"
#include "step2_model/tokenizer/regex.h"
#include "step2_model/tokenizer/scanner.h"

namespace ladder {

class PreTokenizer {
 public:
  // From the JSON value; `what` is how errors call it. With fast_scanner = false the known patterns, too, are
  // run by the regex engine: what the tests compare the scanner with.
  static PreTokenizer parse(const Json& value, std::string_view what, bool fast_scanner = true);

  // Replaces `ends` by the ends of the pieces of `text` (valid UTF-8), ascending; the last is text.size().
  void split(std::string_view text, std::vector<int64_t>& ends) const;

  // Whether a text that does not begin with a space gets one (GPT-2's option of that name).
  bool add_prefix_space() const { return add_prefix_space_; }

 private:
  using Stage = std::variant<KnownPattern, Regex>;
  void add_stage(const Json& value, std::string_view what, bool fast_scanner);
  void add_pattern(std::string_view pattern, std::string_view what, bool fast_scanner);

  std::vector<Stage> stages_;  // each cuts the pieces of the one before
  bool add_prefix_space_ = false;
  bool byte_level_ = false;
};

}  // namespace ladder

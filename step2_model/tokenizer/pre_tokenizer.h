#pragma once
// The `pre_tokenizer` of tokenizer.json: cuts a text into the pieces within which BPE merges. No merge
// crosses the end of a piece.
//
// Supported: `ByteLevel`, `Split` by a regex with behavior Isolated or by a string, `Digits`, `Metaspace`, and a
// `Sequence` of those in which ByteLevel comes last and Metaspace first. ByteLevel also says that a token's text
// is spelled in the byte alphabet (byte_alphabet.h); without it a tokenizer is of the SentencePiece kind, which
// often has no pre-tokenizer at all (null): then the whole text is one piece.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "step2_model/json.h"
#include "step2_model/tokenizer/metaspace.h"
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
  // How the spaces of a text are written before it is split; nothing: as they are.
  const std::optional<Metaspace>& metaspace() const { return metaspace_; }
  bool byte_level() const { return byte_level_; }

 private:
  // A cut at each occurrence of a string: into a piece of its own, or one with what stands before or after it. Of
  // several occurrences in a row only the one next to other text joins it.
  struct Literal {
    enum class Behavior { kIsolated, kMergedWithPrevious, kMergedWithNext };
    std::string text;
    Behavior behavior;

    void split(std::string_view piece, int64_t offset, std::vector<int64_t>& ends) const;
  };
  using Stage = std::variant<KnownPattern, Regex, Literal>;
  void add_stage(const Json& value, std::string_view what, bool fast_scanner);
  void add_split(const Json& value, std::string_view what, bool fast_scanner);
  void add_pattern(std::string_view pattern, std::string_view what, bool fast_scanner);

  std::vector<Stage> stages_;  // each cuts the pieces of the one before
  std::optional<Metaspace> metaspace_;
  bool add_prefix_space_ = false;
  bool byte_level_ = false;
};

}  // namespace ladder

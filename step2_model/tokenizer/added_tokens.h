#pragma once
// The added tokens of a tokenizer: strings such as <|im_end|> that are one token wherever they stand, found
// in the text before it is split and merged.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ladder {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;      // control token: left out by skip_special, and not recognised in untrusted text
  bool single_word = false;  // only where no word character (kWord, unicode.h) stands before or after it
  bool lstrip = false;       // includes the spaces (kSpace) before it, up to the token before
  bool rstrip = false;       // includes the spaces after it
  bool normalized = false;   // sought in the normalized text instead of the text as given
};

// Up to byte `end` a text is trusted, or it is not: in what is not, control tokens are plain text.
struct TextStretch {
  int64_t end;
  bool trusted;
};

// A stretch of text: an added token, or plain text between them.
struct TextPart {
  int64_t begin, end;
  const AddedToken* token;  // nullptr: plain text
};

// Finds a set of added tokens in a text, the longest at the leftmost place first (Aho-Corasick's
// leftmost-longest order, as Hugging Face uses it).
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  // Contents are distinct and not empty.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  // The parts of `text` (valid UTF-8), in order and without gaps. `stretches` are those of the text, in order
  // and to its end. Control tokens are the special ones and those of the ids `control_ids`. One that is found
  // in a stretch that is not trusted stays text, and nothing is sought inside of it: as Hugging Face has it
  // with split_special_tokens. A control token does not reach across the end of a stretch: where one would, the
  // longest token that ends before it counts. One that is no single word stays text, too, and the search goes on
  // behind it.
  std::vector<TextPart> split(std::string_view text, std::span<const TextStretch> stretches,
                              std::span<const int32_t> control_ids = {}) const;

 private:
  const AddedToken* longest_at(std::string_view text) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  std::vector<bool> is_first_byte_;
};

}  // namespace ladder

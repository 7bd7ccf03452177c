#pragma once
// The added tokens of a tokenizer: strings such as <|im_end|> that are one token wherever they stand, found
// in the text before it is split and merged.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ladder {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;      // control token: left out by skip_special, and not recognised in untrusted text
  bool single_word = false;  // only where no word character stands before or behind it
  bool lstrip = false;       // takes the spaces before it in
  bool rstrip = false;       // takes the spaces behind it in
  bool normalized = false;   // sought in the normalized text instead of the text as given
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

  // The parts of `text` (valid UTF-8), in order and without gaps. A special token that `is_trusted` refuses
  // for the bytes [begin, end) it was found at stays text.
  std::vector<TextPart> split(std::string_view text,
                              const std::function<bool(int64_t begin, int64_t end)>& is_trusted) const;

 private:
  const AddedToken* longest_at(std::string_view text) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  std::vector<bool> is_first_byte_;
};

}  // namespace ladder

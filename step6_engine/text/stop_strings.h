#pragma once
// Task 6.2: stop strings over a stream of text.
//
// A completion ends where one of its stop strings is complete, and the stop string is not part of its text.
// Text arrives piece by piece (a token is rarely a word), so the end of what has arrived may be the beginning
// of a stop string; that end is held back until it is certain.
//
//   stop string "\n\nQ"     arrives:  "yes."   "\n"   "\nA"
//                           let out:  "yes."   ""     "\n\nA"
//
// The match that ends first wins, of several that end together the longest: what is let out depends on the
// text alone, not on how it was cut into pieces.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ladder {

class StopStrings {
 public:
  // None of them empty. `include_in_text`: a match is let out with the text that it ends.
  explicit StopStrings(std::vector<std::string> stops, bool include_in_text = false);

  // Adds a piece and returns the text that is now certain. After a match it returns "" and forgets the piece.
  // Without `may_match` nothing ends inside of this piece, though it may be the beginning of what ends later
  // (SamplingParams::min_tokens).
  std::string append(std::string_view piece, bool may_match = true);
  // No more text will come: what was held back. "" after a match.
  std::string finish();

  bool matched() const { return matched_ >= 0; }
  const std::string& match() const {
    return stops_[static_cast<size_t>(matched_)].text;
  }  // only if matched()

 private:
  struct Stop {
    std::string text;
    std::vector<int32_t> fallback;  // Knuth-Morris-Pratt: longest border of each prefix
    int32_t length_matched = 0;     // longest prefix of `text` that the stream ends with
  };

  std::vector<Stop> stops_;
  std::string held_;
  bool include_in_text_ = false;
  int64_t matched_ = -1;  // index; -1: none yet
};

}  // namespace ladder

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
  explicit StopStrings(std::vector<std::string> stops);  // none of them empty

  // Adds a piece and returns the text that is now certain. After a match it returns "" and forgets the piece.
  std::string append(std::string_view piece);
  // No more text will come: what was held back. "" after a match.
  std::string finish();

  bool matched() const { return matched_; }

 private:
  struct Stop {
    std::string text;
    std::vector<int32_t> fallback;  // Knuth-Morris-Pratt: longest border of each prefix
    int32_t length_matched = 0;     // longest prefix of `text` that the stream ends with
  };

  std::vector<Stop> stops_;
  std::string held_;
  bool matched_ = false;
};

}  // namespace ladder

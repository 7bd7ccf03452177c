#pragma once
// Where a JSON object ends in a text that is still being written, and what its members are.
//
// A pushdown automaton, one step per byte: it says at the first byte that cannot go on, so whoever waits for the end of
// an object never waits for one that cannot come.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace ladder {

class JsonScanner {
 public:
  enum class State : uint8_t { more, complete, malformed };
  static constexpr size_t kMaxDepth = 64;  // deeper is malformed

  // Feeds the next byte of a text that begins with its '{'. JSON as RFC 8259 has it: no control characters within
  // strings, no NaN, no comments, no comma before an end. Bytes of other than ASCII are taken as they are, within
  // strings alone. After complete or malformed nothing is fed.
  State feed(char c);

  // Of the object itself, not of those within: where the value of the last member of this name stands in what was fed.
  // length 0: there is none. Names are compared as they are written, without escapes.
  struct Range {
    size_t begin = 0, length = 0;
  };
  Range name, arguments, parameters;

 private:
  enum class Expects : uint8_t {
    object,  // the first '{'
    value,
    value_or_end,  // after '['
    key_or_end,    // after '{'
    key,
    colon,
    comma_or_end,
    string,
    escape,
    unicode,  // hexadecimal digits of an escape
    number,
    literal,  // the rest of true, false, null
    nothing
  };
  State begin_value(char c);
  State end_value(size_t end);  // which ends before the position `end`
  State close(char c);
  bool number_goes_on(char c);
  bool number_may_end() const;
  State malformed() { return expects_ = Expects::nothing, State::malformed; }

  Expects expects_ = Expects::object;
  std::string open_;        // '{' and '[' that are not closed
  std::string key_;         // of the member at depth 1, its first bytes
  size_t position_ = 0;     // of the byte that is fed
  size_t value_begin_ = 0;  // of the member's value at depth 1
  bool string_is_key_ = false;
  int digits_missing_ = 0;    // of a \u escape
  char number_ = 0;           // what came last in the number: - 0 1 . 2 e s 3 (see number_goes_on)
  std::string_view literal_;  // what is still missing
};

}  // namespace ladder

#pragma once
// Values as text: what {{ value }} writes, Python's str() and repr(), numbers, JSON, and formatting.
#include <span>

#include "step2_model/chat/jinja/value.h"

namespace ladder::jinja {

// Grows within the budget: nothing is made that the budget does not allow. Several may grow at the same time, each
// within another's operands, so what they hold is counted from the beginning.
class TextBuilder {
 public:
  explicit TextBuilder(Budget& budget) : budget_(budget) {}
  ~TextBuilder() { budget_.release(held_); }
  TextBuilder(const TextBuilder&) = delete;
  void append(const Text& text) {
    reserve(text.bytes_held());
    text_.append(text);
  }
  void append(std::string_view bytes, Origin origin = Origin::trusted) {
    reserve(bytes.size());
    text_.append(bytes, origin);
  }
  // Before the characters of a text are written one by one.
  void walk(const Text& text) { budget_.walk(text.size()); }
  Text take() {
    budget_.release(std::exchange(held_, 0));
    return std::move(text_);
  }

 private:
  void reserve(size_t bytes) {
    budget_.step(1 + static_cast<int64_t>(bytes / 64));
    budget_.hold(bytes);
    held_ += bytes;
  }
  Budget& budget_;
  Text text_;
  size_t held_ = 0;
};

// str(value): a text as it is, undefined as nothing, a list as Python prints it. Refusal: an iterator, a range, a
// namespace, a function, whose texts are of no use.
Text print(Interpreter& interpreter, const Value& value);
// repr(value).
void append_repr(TextBuilder& out, const Value& value);

// As Python prints a float: the fewest digits that read as the same number, "1.0", "1e+16", "inf".
std::string float_text(double value);

struct JsonStyle {
  bool ascii = false, sort_keys = false, indents = false;
  std::string indent;  // of a level
  std::string item_separator = ", ", key_separator = ": ";
  Origin origin = Origin::trusted;  // of indent and separators
};
// As json.dumps writes it. What comes from outside keeps its mark, the brackets of its lists and dicts included.
// Refusal: a value or a key that JSON does not have.
Text to_json(Interpreter& interpreter, const Value& value, const JsonStyle& style);

// Python's text % values, for %s %r %d %i %x %f %e %g %% and %c with flags, width and precision (format.cpp).
Value format_percent(Interpreter& interpreter, const Text& format, std::span<const Value> values);
// Python's str.format, for {} {0} {name} without specifications (format.cpp).
Value format_braces(Interpreter& interpreter, const Text& format, const Arguments& arguments);

}  // namespace ladder::jinja

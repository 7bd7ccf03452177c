#include "step6_engine/server/openai/tools/json_scanner.h"

namespace ladder {

namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

JsonScanner::State JsonScanner::feed(char c) {
  const size_t at = position_++;
  switch (expects_) {
    case Expects::string:
      if (static_cast<unsigned char>(c) < 0x20) return malformed();
      if (c == '\\') return expects_ = Expects::escape, State::more;
      if (c != '"') {
        if (string_is_key_ && open_.size() == 1 && key_.size() < 16) key_ += c;
        return State::more;
      }
      if (!string_is_key_) return end_value(at + 1);
      return expects_ = Expects::colon, State::more;
    case Expects::escape:
      if (string_is_key_ && open_.size() == 1) key_ += '\\';  // no name that is looked for
      expects_ = c == 'u' ? Expects::unicode : Expects::string;
      digits_missing_ = 4;
      return c == 'u' || std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos ? State::more
                                                                                          : malformed();
    case Expects::unicode:
      if (std::string_view("0123456789abcdefABCDEF").find(c) == std::string_view::npos) return malformed();
      if (--digits_missing_ == 0) expects_ = Expects::string;
      return State::more;
    case Expects::literal:
      if (c != literal_.front()) return malformed();
      literal_.remove_prefix(1);
      return literal_.empty() ? end_value(at + 1) : State::more;
    case Expects::number:
      if (number_goes_on(c)) return State::more;
      if (!number_may_end()) return malformed();
      end_value(at);
      break;  // the byte belongs to what follows
    default:
      break;
  }

  if (is_space(c) && expects_ != Expects::object && expects_ != Expects::nothing) return State::more;
  switch (expects_) {
    case Expects::object:
      if (c != '{') return malformed();
      open_ = "{";
      return expects_ = Expects::key_or_end, State::more;
    case Expects::key_or_end:
    case Expects::key:
      if (c == '}' && expects_ == Expects::key_or_end) return close(c);
      if (c != '"') return malformed();
      string_is_key_ = true;
      if (open_.size() == 1) key_.clear();
      return expects_ = Expects::string, State::more;
    case Expects::colon:
      return c == ':' ? (expects_ = Expects::value, State::more) : malformed();
    case Expects::comma_or_end:
      if (c != ',') return close(c);
      return expects_ = open_.back() == '{' ? Expects::key : Expects::value, State::more;
    case Expects::value_or_end:
      if (c == ']') return close(c);
      return begin_value(c);
    case Expects::value:
      return begin_value(c);
    default:
      return malformed();
  }
}

JsonScanner::State JsonScanner::begin_value(char c) {
  if (open_.size() == 1) value_begin_ = position_ - 1;
  if (c == '{' || c == '[') {
    if (open_.size() == kMaxDepth) return malformed();
    open_ += c;
    return expects_ = c == '{' ? Expects::key_or_end : Expects::value_or_end, State::more;
  }
  if (c == '"') {
    string_is_key_ = false;
    return expects_ = Expects::string, State::more;
  }
  if (is_digit(c) || c == '-') {
    number_ = c == '-' || c == '0' ? c : '1';
    return expects_ = Expects::number, State::more;
  }
  literal_ = c == 't' ? "rue" : c == 'f' ? "alse" : c == 'n' ? "ull" : "";
  return literal_.empty() ? malformed() : (expects_ = Expects::literal, State::more);
}

// number_ after: '-' the sign, '0' a zero in front, '1' a digit in front, '.' the point, '2' a digit behind it, 'e' the e,
// 's' its sign, '3' a digit of the exponent.
bool JsonScanner::number_goes_on(char c) {
  char next = 0;
  if (is_digit(c))
    next = number_ == '-'                     ? (c == '0' ? '0' : '1')
           : number_ == '1'                   ? '1'
           : number_ == '.' || number_ == '2' ? '2'
           : number_ == '0'                   ? 0
                                              : '3';
  else if (c == '.')
    next = number_ == '0' || number_ == '1' ? '.' : 0;
  else if (c == 'e' || c == 'E')
    next = number_ == '0' || number_ == '1' || number_ == '2' ? 'e' : 0;
  else if (c == '+' || c == '-')
    next = number_ == 'e' ? 's' : 0;
  if (next != 0) number_ = next;
  return next != 0;
}

bool JsonScanner::number_may_end() const {
  return number_ == '0' || number_ == '1' || number_ == '2' || number_ == '3';
}

JsonScanner::State JsonScanner::end_value(size_t end) {
  expects_ = Expects::comma_or_end;
  if (open_.size() != 1) return State::more;
  const Range value{value_begin_, end - value_begin_};
  if (key_ == "name") name = value;
  if (key_ == "arguments") arguments = value;
  if (key_ == "parameters") parameters = value;
  return State::more;
}

JsonScanner::State JsonScanner::close(char c) {
  if (c != (open_.back() == '{' ? '}' : ']')) return malformed();
  open_.pop_back();
  if (open_.empty()) return expects_ = Expects::nothing, State::complete;
  return end_value(position_);
}
}  // namespace ladder

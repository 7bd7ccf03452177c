// Task 2.6.lexer: Jinja's text to tokens.
#include "step2_model/chat/jinja/lexer.h"

#include <algorithm>
#include <cctype>

#include "step1_layers/core/task_not_implemented.h"
#include "step2_model/chat/jinja/budget.h"
#include "step2_model/chat/jinja/text.h"
#include "step2_model/tokenizer/unicode.h"

namespace ladder::jinja {
namespace {

constexpr size_t kMaxName = 1000;  // bytes: names are copied and compared without being counted as steps

// Longest first.
constexpr std::string_view kSymbols[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                         "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                         ">",  "<",  "=",  ".",  ":",  "|",  ","};

// As Jinja reads a file: every line break is \n, and one at the end does not count.
std::string with_plain_line_breaks(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    text.push_back(source[i] == '\r' ? '\n' : source[i]);
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

bool is_name_character(unsigned code_point) {
  return code_point == '_' || (unicode_classes(code_point) & (kLetter | kNumber)) != 0;
}

// The length of a number at the beginning of `text`; `real` says whether it has a fraction or an exponent.
size_t number_length(std::string_view text, bool& real) {
  const auto digits = [&](size_t at) {
    while (at < text.size() && (std::isdigit(static_cast<unsigned char>(text[at])) != 0 || text[at] == '_'))
      ++at;
    return at;
  };
  const auto is_digit = [&](size_t at) {
    return at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) != 0;
  };
  real = false;
  size_t end = digits(0);
  if (end < text.size() && text[end] == '.' && is_digit(end + 1)) {
    end = digits(end + 1);
    real = true;
  }
  if (end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
    const size_t sign = end + 1 < text.size() && (text[end + 1] == '+' || text[end + 1] == '-') ? 1 : 0;
    if (is_digit(end + 1 + sign)) {
      end = digits(end + 1 + sign);
      real = true;
    }
  }
  return end;
}

class Lexer {
 public:
  Lexer(std::string_view source, int& line) : source_(source), line_(line) { line_ = 1; }
  std::vector<Token> run();

 private:
  // All from `at_` on.
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void skip(size_t bytes) {
    line_ += static_cast<int>(std::count_if(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                            source_.begin() + static_cast<std::ptrdiff_t>(at_ + bytes),
                                            [](char c) { return c == '\n'; }));
    at_ += bytes;
  }
  void skip_spaces() { skip(rest().size() - without_leading_spaces(rest()).size()); }

  static std::string_view without_leading_spaces(std::string_view text);
  static std::string_view without_trailing_spaces(std::string_view text);

  void add_data(std::string_view text, char sign, bool strips_line);
  bool skip_tag_end(std::string_view close, bool trims_line_break);
  void read_comment();
  bool read_raw();
  void read_tag(bool block);
  void read_in_tag();

  std::string_view source_;
  int& line_;
  size_t at_ = 0;
  bool line_starting_ = true;  // what was read last ended with a line break
  std::string brackets_;       // those that are open in the tag
  std::vector<Token> tokens_;
};

std::string_view Lexer::without_leading_spaces(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char c = utf8_decode(text.data());
    if (!is_python_space(c.code_point)) break;
    text.remove_prefix(static_cast<size_t>(c.length));
  }
  return text;
}

std::string_view Lexer::without_trailing_spaces(std::string_view text) {
  while (!text.empty()) {
    size_t last = text.size() - 1;
    while ((text[last] & 0xc0) == 0x80) --last;
    if (!is_python_space(utf8_decode(text.data() + last).code_point)) break;
    text.remove_suffix(text.size() - last);
  }
  return text;
}

// After "{%" and its sign: raw blocks are data up to their {% endraw %}.
bool Lexer::read_raw() {
  const size_t before = at_;
  const int line = line_;
  skip_spaces();
  if (rest().starts_with("raw")) {
    skip(3);
    skip_spaces();
    const bool strips = rest().starts_with("-%}");
    if (strips || rest().starts_with("%}")) {
      skip(strips ? 3 : 2);
      if (strips) skip_spaces();
      line_starting_ = source_[at_ - 1] == '\n';
      const size_t begin = at_;
      for (; !rest().empty(); skip(1)) {
        const size_t end = at_;
        if (!rest().starts_with("{%")) continue;
        const int end_line = line_;
        skip(2);
        const char sign = rest().empty() ? '\0' : rest()[0];
        const bool has_sign = sign == '-' || sign == '+';
        if (has_sign) skip(1);
        skip_spaces();
        if (rest().starts_with("endraw")) {
          skip(6);
          skip_spaces();
          const bool starting = line_starting_;
          if (skip_tag_end("%}", true)) {
            const bool ended = std::exchange(line_starting_, starting);
            add_data(source_.substr(begin, end - begin), has_sign ? sign : '\0', true);
            line_starting_ = ended;
            return true;
          }
        }
        at_ = end;
        line_ = end_line;
      }
      refuse("a raw block is not closed");
    }
  }
  at_ = before;
  line_ = line;
  return false;
}

// >>> task 2.6.lexer: data and tags with their white space, comments, and the tokens inside of a tag
// The text before a tag whose `sign` is '-', '+' or 0; with strips_line the tag is a block or a comment.
void Lexer::add_data(std::string_view text, char sign, bool strips_line) {
  if (sign == '-') {
    text = without_trailing_spaces(text);
  } else if (sign != '+' && strips_line) {
    const size_t line = text.rfind('\n') + 1;  // 0 where there is no line break
    if ((line > 0 || line_starting_) && without_leading_spaces(text.substr(line)).empty())
      text = text.substr(0, line);
  }
  if (!text.empty()) add(TokenKind::data, std::string(text));
}

// Takes "%}" with its sign and the white space behind it, where it stands at the beginning of the rest.
bool Lexer::skip_tag_end(std::string_view close, bool trims_line_break) {
  const char sign = rest().empty() ? '\0' : rest()[0];
  const bool has_sign = sign == '-' || (sign == '+' && trims_line_break);
  if (!rest().substr(has_sign ? 1 : 0).starts_with(close)) return false;
  skip(close.size() + (has_sign ? 1 : 0));
  if (sign == '-') {
    skip_spaces();
  } else if (sign != '+' && trims_line_break && rest().starts_with('\n')) {
    skip(1);
  }
  line_starting_ = at_ > 0 && source_[at_ - 1] == '\n';
  return true;
}

void Lexer::read_comment() {
  while (!skip_tag_end("#}", true)) {
    if (rest().empty()) refuse("a comment is not closed");
    skip(1);
  }
}

void Lexer::read_in_tag() {
  const std::string_view text = rest();
  const Utf8Char first = utf8_decode(text.data());
  if (text[0] == '\'' || text[0] == '"') {
    size_t end = 1;
    while (end < text.size() && text[end] != text[0]) end += text[end] == '\\' ? 2 : 1;
    if (end >= text.size()) refuse("a string is not closed");
    add(TokenKind::string, resolve_escapes(text.substr(1, end - 1)));
    return skip(end + 1);
  }
  if (std::isdigit(static_cast<unsigned char>(text[0])) != 0) {
    bool real = false;
    size_t length = number_length(text, real);
    // In `a.0.5` the 0 and the 5 are items.
    if (real && at_ > 0 && source_[at_ - 1] == '.') {
      real = false;
      length = text.find('.');
    }
    std::string digits(text.substr(0, length));
    std::erase(digits, '_');
    add(real ? TokenKind::real : TokenKind::integer, digits);
    return skip(length);
  }
  if (is_name_character(first.code_point)) {
    size_t end = 0;
    while (end < text.size() && is_name_character(utf8_decode(text.data() + end).code_point))
      end += static_cast<size_t>(utf8_decode(text.data() + end).length);
    add(TokenKind::name, std::string(text.substr(0, end)));
    return skip(end);
  }
  for (const std::string_view symbol : kSymbols) {
    if (!text.starts_with(symbol)) continue;
    if (const size_t open = std::string_view("([{").find(symbol); open != std::string_view::npos)
      brackets_.push_back(")]}"[open]);
    if (symbol == ")" || symbol == "]" || symbol == "}") {
      if (brackets_.empty() || brackets_.back() != symbol[0]) refuse("\"{}\" closes nothing", symbol);
      brackets_.pop_back();
    }
    add(TokenKind::symbol, std::string(symbol));
    return skip(symbol.size());
  }
  refuse("\"{}\" is no part of an expression", text.substr(0, static_cast<size_t>(first.length)));
}

void Lexer::read_tag(bool block) {
  add(block ? TokenKind::block_begin : TokenKind::variable_begin, "");
  brackets_.clear();
  while (true) {
    skip_spaces();
    if (rest().empty()) refuse("a tag is not closed");
    if (brackets_.empty() && skip_tag_end(block ? "%}" : "}}", block)) break;
    read_in_tag();
  }
  add(block ? TokenKind::block_end : TokenKind::variable_end, "");
}

std::vector<Token> Lexer::run() {
  while (!rest().empty()) {
    size_t begin = rest().find('{');
    while (begin != std::string_view::npos &&
           !(begin + 1 < rest().size() &&
             std::string_view("{%#").find(rest()[begin + 1]) != std::string_view::npos))
      begin = rest().find('{', begin + 1);
    const std::string_view before = rest().substr(0, begin);
    if (begin == std::string_view::npos) {
      add(TokenKind::data, std::string(before));
      skip(before.size());
      break;
    }
    const char kind = rest()[begin + 1];
    const char sign = begin + 2 < rest().size() ? rest()[begin + 2] : '\0';
    const bool has_sign = sign == '-' || sign == '+';
    add_data(before, sign, kind != '{');
    skip(before.size() + 2 + (has_sign ? 1 : 0));
    line_starting_ = false;
    if (kind == '#') {
      read_comment();
    } else if (kind == '{' || !read_raw()) {
      read_tag(kind == '%');
    }
  }
  add(TokenKind::end, "");
  return std::move(tokens_);
}
// <<< task 2.6.lexer

}  // namespace

std::string resolve_escapes(std::string_view literal) {
  constexpr std::string_view kLetters = "ntrabfv\\'\"", kMeant = "\n\t\r\a\b\f\v\\'\"";
  std::string text;
  for (size_t at = 0; at < literal.size();) {
    if (literal[at] != '\\' || at + 1 == literal.size()) {
      text.push_back(literal[at++]);
      continue;
    }
    const char letter = literal[at + 1];
    if (const size_t known = kLetters.find(letter); known != std::string_view::npos) {
      text.push_back(kMeant[known]);
      at += 2;
      continue;
    }
    const size_t hex_digits = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    const bool octal = letter >= '0' && letter <= '7';
    if (letter == 'N') refuse("the escape \\N is not supported");
    if (letter == '\n') {
      at += 2;
    } else if (hex_digits == 0 && !octal) {
      text.push_back('\\');
      ++at;
    } else {
      at += octal ? 1 : 2;
      uint32_t code_point = 0;
      size_t digits = 0;
      for (; digits < (octal ? 3 : hex_digits) && at < literal.size(); ++digits, ++at) {
        const auto c = static_cast<unsigned char>(literal[at]);
        if (octal ? c < '0' || c > '7' : std::isxdigit(c) == 0) break;
        const int digit = std::isdigit(c) != 0 ? c - '0' : std::tolower(c) - 'a' + 10;
        code_point = code_point * (octal ? 8 : 16) + static_cast<uint32_t>(digit);
      }
      if ((!octal && digits != hex_digits) || code_point >= 0x110000 ||
          (code_point >= 0xd800 && code_point < 0xe000))
        refuse("the escape \\{} names no character", letter);
      utf8_append(text, code_point);
    }
  }
  return text;
}

std::vector<Token> read_tokens(std::string_view source, int& line) {
  line = 1;
  if (utf8_valid_prefix(source) != static_cast<int64_t>(source.size())) refuse("the text is not UTF-8");
  const std::string text = with_plain_line_breaks(source);
  std::vector<Token> tokens = Lexer(text, line).run();
  for (const Token& token : tokens)
    if (token.kind == TokenKind::name && token.text.size() > kMaxName) {
      line = token.line;
      refuse("a name has at most {} bytes", kMaxName);
    }
  return tokens;
}

}  // namespace ladder::jinja

#pragma once
// Jinja's text to tokens.
//
//     Hi {{ name|upper }}!   ->   data "Hi "  {{  name "name"  operator "|"  name "upper"  }}  data "!"
//
// With the settings that transformers renders chat templates with: trim_blocks (the line break after a %} or #} goes),
// lstrip_blocks (spaces before a {% or {# that begins its line go), and one line break at the very end of the text goes.
// `-` inside a tag takes all white space on its side away, `+` keeps what these settings would take.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ladder::jinja {

enum class TokenKind : uint8_t {
  data,            // text outside of tags
  variable_begin,  // {{
  variable_end,    // }}
  block_begin,     // {%
  block_end,       // %}
  name,            // of a variable, filter, statement: also `if`, `and`, `true`
  string,          // its characters, escapes resolved
  integer,         // as written, underscores left out
  real,            // as written, underscores left out
  symbol,          // an operator or a bracket
  end,             // of the template
};

struct Token {
  TokenKind kind;
  std::string text;
  int line;  // from 1
};

// A list that ends with TokenKind::end. Comments are left out, {% raw %} is data. Inside of brackets }} and %} end no tag.
// Refusal, and `line` says where: a tag, comment, string or raw block that is not closed, a bracket without its partner,
// an escape or a character that is not known, invalid UTF-8.
std::vector<Token> read_tokens(std::string_view source, int& line);

// A string literal's characters: \n \t \r \a \b \f \v \\ \' \" \ooo \xhh \uhhhh \Uhhhhhhhh, and a line break after a
// backslash goes. Any other backslash stays.
std::string resolve_escapes(std::string_view literal);

}  // namespace ladder::jinja

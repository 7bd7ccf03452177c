#pragma once
// C++ and CUDA source as tokens: as much of the language as finding the bodies of functions takes. Comments are
// left out; a preprocessor line is one token, and so is a string of any kind.
#include <string_view>
#include <vector>

namespace lab {

enum class TokenKind { word, number, text, symbol, directive };

struct Token {
  TokenKind kind;
  std::string_view text;
  size_t begin;  // offset in the source; it ends at begin + text.size()
};

// Error (LabError): a comment or a string that does not end, with its line.
std::vector<Token> tokenize(std::string_view source);

int line_of(std::string_view source, size_t offset);  // from 1

}  // namespace lab

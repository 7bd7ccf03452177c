#include "lab/tokens.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include "lab/lab_error.h"

namespace lab {
namespace {

// Longer ones first. `>>` is two tokens, since it may close two templates.
constexpr std::array<std::string_view, 17> kSymbols = {
    "<<=", ">>=", "<=>", "...", "::", "->", "==", "!=", "<=", ">=", "+=", "-=", "*=", "/=", "%=", "&=", "|="};

bool starts_word(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) || c == '_';
}
bool in_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
}

class Tokenizer {
 public:
  explicit Tokenizer(std::string_view source) : source_(source) {}

  std::vector<Token> run() {
    while (skip_blanks(), at_ < source_.size()) {
      const size_t begin = at_;
      const TokenKind kind = next();
      tokens_.push_back({kind, source_.substr(begin, at_ - begin), begin});
      line_begins_ = false;
    }
    return std::move(tokens_);
  }

 private:
  char peek(size_t ahead = 0) const { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; }
  bool here(std::string_view text) const { return source_.substr(at_, text.size()) == text; }

  [[noreturn]] void unended(const char* what, size_t begin) const {
    throw LabError("line " + std::to_string(line_of(source_, begin)) + ": " + what + " that does not end");
  }

  void find_end(std::string_view end, const char* what) {
    const size_t begin = at_, found = source_.find(end, at_ + 2);
    if (found == std::string_view::npos) unended(what, begin);
    at_ = found + end.size();
  }

  void skip_line() {  // to the end of the line that a backslash does not continue
    while (at_ < source_.size() && peek() != '\n') at_ += peek() == '\\' && at_ + 1 < source_.size() ? 2 : 1;
  }

  void skip_blanks() {
    while (at_ < source_.size()) {
      if (here("//"))
        skip_line();
      else if (here("/*"))
        find_end("*/", "a comment");
      else if (std::isspace(static_cast<unsigned char>(peek())) || here("\\\n"))
        line_begins_ |= source_[at_++] == '\n';
      else
        return;
    }
  }

  TokenKind next() {
    if (peek() == '#' && line_begins_) {
      while (at_ < source_.size() && peek() != '\n') {
        if (here("/*"))
          find_end("*/", "a comment");
        else
          at_ += peek() == '\\' && at_ + 1 < source_.size() ? 2 : 1;
      }
      at_ = std::min(at_, source_.size());
      return TokenKind::directive;
    }
    if (starts_word(peek())) {
      const size_t begin = at_;
      while (in_word(peek())) ++at_;
      const std::string_view word = source_.substr(begin, at_ - begin);
      if (peek() != '"' && peek() != '\'') return TokenKind::word;
      if (word != "L" && word != "u" && word != "U" && word != "u8" && !word.ends_with('R'))
        return TokenKind::word;
      if (word.ends_with('R') && peek() == '"') return raw_string(begin);
      quoted(peek());
      return TokenKind::text;
    }
    const bool digit = std::isdigit(static_cast<unsigned char>(peek())) ||
                       (peek() == '.' && std::isdigit(static_cast<unsigned char>(peek(1))));
    if (digit) {
      while (in_word(peek()) || peek() == '.' || (peek() == '\'' && in_word(peek(1))) ||
             ((peek() == '+' || peek() == '-') &&
              std::string_view("eEpP").find(source_[at_ - 1]) != std::string_view::npos))
        ++at_;
      return TokenKind::number;
    }
    if (peek() == '"' || peek() == '\'') {
      quoted(peek());
      return TokenKind::text;
    }
    const auto symbol = std::ranges::find_if(kSymbols, [&](std::string_view text) { return here(text); });
    at_ += symbol == kSymbols.end() ? 1 : symbol->size();
    return TokenKind::symbol;
  }

  void quoted(char quote) {
    const size_t begin = at_++;
    while (at_ < source_.size() && peek() != quote && peek() != '\n') at_ += peek() == '\\' ? 2 : 1;
    if (at_ >= source_.size() || peek() != quote) unended("a literal", begin);
    ++at_;
  }

  TokenKind raw_string(size_t begin) {
    const size_t open = source_.find('(', at_);
    if (open == std::string_view::npos) unended("a raw string", begin);
    const std::string end = ")" + std::string(source_.substr(at_ + 1, open - at_ - 1)) + "\"";
    const size_t found = source_.find(end, open);
    if (found == std::string_view::npos) unended("a raw string", begin);
    at_ = found + end.size();
    return TokenKind::text;
  }

  std::string_view source_;
  size_t at_ = 0;
  bool line_begins_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Tokenizer(source).run();
}

int line_of(std::string_view source, size_t offset) {
  return 1 + static_cast<int>(std::ranges::count(source.substr(0, offset), '\n'));
}

}  // namespace lab

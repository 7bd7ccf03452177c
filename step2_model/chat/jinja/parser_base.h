#pragma once
// What the parser of statements and the parser of expressions share: the tokens, and where they are in them.
#include <map>
#include <set>
#include <string_view>

#include "step2_model/chat/jinja/lexer.h"
#include "step2_model/chat/jinja/tree.h"

namespace ladder::jinja {

class Parser {
 public:
  Parser(std::vector<Token> tokens, int& line) : tokens_(std::move(tokens)), line_(line) {}
  Tree run();

 private:
  // The tokens. `is` asks for a symbol or a name by its text.
  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  static bool is(const Token& token, std::string_view text) {
    return (token.kind == TokenKind::symbol || token.kind == TokenKind::name) && token.text == text;
  }
  bool is(std::string_view text) const { return is(now(), text); }
  Token next();
  bool skip_if(std::string_view text);
  void expect(std::string_view text);
  void expect(TokenKind kind, std::string_view what);
  std::string expect_name(std::string_view what);

  // Nodes. `finished` refuses a tree that is too deep to be walked.
  ExpressionPtr make(Expression::Kind kind, std::vector<ExpressionPtr> operands = {}) const;
  ExpressionPtr binary(std::string_view op, ExpressionPtr left, ExpressionPtr right) const;
  int symbol(const std::string& name);

  // Expressions (parser_expressions.cpp).
  ExpressionPtr expression();  // with `a if b else c`
  ExpressionPtr tuple_or_expression(bool with_conditional);
  ExpressionPtr logical_or();
  ExpressionPtr logical_and();
  ExpressionPtr logical_not();
  ExpressionPtr compare();
  ExpressionPtr sum();
  ExpressionPtr concat();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters);
  ExpressionPtr primary();
  ExpressionPtr string_constant();
  ExpressionPtr dict();
  ExpressionPtr postfix(ExpressionPtr node);
  ExpressionPtr filters_and_tests(ExpressionPtr node);
  ExpressionPtr filter(ExpressionPtr subject);
  ExpressionPtr test(ExpressionPtr subject);
  ExpressionPtr subscript(ExpressionPtr subject);
  void arguments(Expression& call);
  std::string dotted_name(std::string_view what);

  // Statements (parser.cpp).
  Body body(std::initializer_list<std::string_view> ends);
  std::unique_ptr<Statement> statement();
  std::unique_ptr<Statement> condition();
  std::unique_ptr<Statement> loop();
  std::unique_ptr<Statement> set();
  std::unique_ptr<Statement> with();
  std::unique_ptr<Statement> macro();
  std::unique_ptr<Statement> call_block();
  std::unique_ptr<Statement> filter_block();
  std::unique_ptr<Statement> generation();
  void parameters(Statement& macro);
  void macro_body(Statement& macro, std::string_view end);
  Target target(bool with_attribute);
  Target one_target(bool with_attribute);

  std::vector<Token> tokens_;
  int& line_;
  size_t at_ = 0;
  int depth_ = 0;                        // brackets and statements around
  int loops_ = 0;                        // loops around, within the macro
  int conditions_ = 0;                   // if statements around
  std::set<std::string> special_names_;  // varargs, kwargs, caller: read in the macro so far
  std::map<std::string, int> symbols_;
  Tree tree_;
};

// One level of brackets or statements, as long as it lives.
class Nesting {
 public:
  explicit Nesting(int& depth) : depth_(depth) {
    if (++depth_ > 200) refuse("more than 200 brackets, operators and statements within each other");
  }
  ~Nesting() { --depth_; }
  Nesting(const Nesting&) = delete;

 private:
  int& depth_;
};

}  // namespace ladder::jinja

// Task 2.6.parser: tokens to the tree of a template.
#include "step2_model/chat/jinja/parser.h"

#include <algorithm>

#include "step1_layers/core/task_not_implemented.h"
#include "step2_model/chat/jinja/parser_base.h"
#include "step2_model/chat/jinja/unset_names.h"

namespace ladder::jinja {
namespace {

std::unique_ptr<Statement> make(Statement::Kind kind, int line) {
  auto statement = std::make_unique<Statement>();
  statement->kind = kind;
  statement->line = line;
  return statement;
}

Value constant(const std::string& text) {
  return Value(std::make_shared<const String>(Text(text, Origin::trusted), nullptr));
}

std::string shown(const Token& token) {
  if (token.kind == TokenKind::end) return "the end of the template";
  if (token.kind == TokenKind::block_end) return "%}";
  if (token.kind == TokenKind::variable_end) return "}}";
  return token.text;
}

}  // namespace

Token Parser::next() {
  line_ = now().line;
  Token token = now();
  if (token.kind != TokenKind::end) ++at_;
  return token;
}

bool Parser::skip_if(std::string_view text) {
  if (!is(text)) return false;
  next();
  return true;
}

void Parser::expect(std::string_view text) {
  if (skip_if(text)) return;
  line_ = now().line;
  refuse("expected \"{}\", found \"{}\"", text, shown(now()));
}

void Parser::expect(TokenKind kind, std::string_view what) {
  line_ = now().line;
  if (now().kind != kind) refuse("expected {}, found \"{}\"", what, shown(now()));
  next();
}

std::string Parser::expect_name(std::string_view what) {
  line_ = now().line;
  if (now().kind != TokenKind::name) refuse("expected {}, found \"{}\"", what, shown(now()));
  return next().text;
}

int Parser::symbol(const std::string& name) {
  const auto [at, is_new] = symbols_.emplace(name, static_cast<int>(tree_.names.size()));
  if (is_new) {
    tree_.names.push_back(name);
    tree_.read.push_back(false);
    tree_.tested.push_back(false);
  }
  return at->second;
}

// Up to the tag whose name is one of `ends`, which stays: after "{%". Without ends: up to the end of the template.
Body Parser::body(std::initializer_list<std::string_view> ends) {
  const Nesting nesting(depth_);
  Body result;
  while (true) {
    line_ = now().line;
    switch (now().kind) {
      case TokenKind::data: {
        auto data = ladder::jinja::make(Statement::Kind::data, now().line);
        tree_.constants.push_back(now().text);
        data->value = constant(next().text);
        result.statements.push_back(std::move(data));
        break;
      }
      case TokenKind::variable_begin: {
        auto output = ladder::jinja::make(Statement::Kind::output, now().line);
        next();
        output->expression = tuple_or_expression(true);
        expect(TokenKind::variable_end, "}}");
        result.statements.push_back(std::move(output));
        break;
      }
      case TokenKind::block_begin: {
        next();
        if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return is(end); }))
          return result;
        result.statements.push_back(statement());
        expect(TokenKind::block_end, "%}");
        break;
      }
      default:
        if (ends.size() != 0) refuse("expected {{% {} %}}, found the end of the template", *ends.begin());
        return result;
    }
  }
}

// >>> task 2.6.parser: the statements if, for, set, macro and call, with their bodies
std::unique_ptr<Statement> Parser::condition() {
  auto result = ladder::jinja::make(Statement::Kind::condition, line_);
  do {  // after "if" or "elif"
    ExpressionPtr when = tuple_or_expression(false);
    expect(TokenKind::block_end, "%}");
    Body then = body({"endif", "else", "elif"});
    result->branches.push_back({std::move(when), std::move(then)});
  } while (skip_if("elif"));
  if (skip_if("else")) {
    expect(TokenKind::block_end, "%}");
    result->branches.push_back({nullptr, body({"endif"})});
  }
  expect("endif");
  return result;
}

std::unique_ptr<Statement> Parser::loop() {
  auto result = ladder::jinja::make(Statement::Kind::loop, line_);
  result->target = target(false);
  expect("in");
  result->expression = tuple_or_expression(false);
  if (skip_if("if")) result->condition = expression();
  if (is("recursive")) refuse("recursive loops are not supported");
  expect(TokenKind::block_end, "%}");
  ++loops_;
  result->body = body({"endfor", "else"});
  --loops_;
  if (skip_if("else")) {
    expect(TokenKind::block_end, "%}");
    result->otherwise = body({"endfor"});
  }
  expect("endfor");
  return result;
}

std::unique_ptr<Statement> Parser::set() {
  auto result = ladder::jinja::make(Statement::Kind::set, line_);
  result->target = target(true);
  if (skip_if("=")) {
    result->expression = tuple_or_expression(true);
    return result;
  }
  result->kind = Statement::Kind::set_block;
  while (skip_if("|")) result->expression = filter(std::move(result->expression));
  expect(TokenKind::block_end, "%}");
  result->body = body({"endset"});
  expect("endset");
  return result;
}

// The body of a macro or a call block: which of varargs, kwargs and caller it reads is noted.
void Parser::macro_body(Statement& macro, std::string_view end) {
  expect(TokenKind::block_end, "%}");
  std::set<std::string> outer_names = std::exchange(special_names_, {});
  const int outer_loops = std::exchange(loops_, 0);
  macro.body = body({end});
  expect(end);
  macro.takes_rest = special_names_.contains("varargs");
  macro.takes_keywords = special_names_.contains("kwargs");
  macro.takes_caller = special_names_.contains("caller");
  special_names_ = std::move(outer_names);
  loops_ = outer_loops;
}

std::unique_ptr<Statement> Parser::macro() {
  auto result = ladder::jinja::make(Statement::Kind::macro, line_);
  result->name = expect_name("the name of the macro");
  result->symbol = symbol(result->name);
  expect("(");
  parameters(*result);
  macro_body(*result, "endmacro");
  return result;
}

std::unique_ptr<Statement> Parser::call_block() {
  auto result = ladder::jinja::make(Statement::Kind::call_block, line_);
  if (skip_if("(")) parameters(*result);
  result->name = "caller";
  result->expression = expression();
  if (result->expression->kind != Expression::Kind::call) refuse("expected a call of a macro after call");
  macro_body(*result, "endcall");
  return result;
}
// <<< task 2.6.parser

std::unique_ptr<Statement> Parser::filter_block() {
  auto result = ladder::jinja::make(Statement::Kind::filter_block, line_);
  result->expression = filter(nullptr);
  while (skip_if("|")) result->expression = filter(std::move(result->expression));
  expect(TokenKind::block_end, "%}");
  result->body = body({"endfilter"});
  expect("endfilter");
  return result;
}

// Marks what the model itself wrote, for training on it; the text is the same with and without.
std::unique_ptr<Statement> Parser::generation() {
  auto result = ladder::jinja::make(Statement::Kind::scope, line_);
  expect(TokenKind::block_end, "%}");
  result->body = body({"endgeneration"});
  expect("endgeneration");
  return result;
}

std::unique_ptr<Statement> Parser::with() {
  auto result = ladder::jinja::make(Statement::Kind::with, line_);
  while (now().kind != TokenKind::block_end) {
    if (!result->assignments.empty()) expect(",");
    Target name = one_target(false);
    expect("=");
    result->assignments.emplace_back(std::move(name), expression());
  }
  expect(TokenKind::block_end, "%}");
  result->body = body({"endwith"});
  expect("endwith");
  return result;
}

std::unique_ptr<Statement> Parser::statement() {
  const std::string name = expect_name("the name of a statement");
  if (name == "if") {
    ++conditions_;
    auto result = condition();
    --conditions_;
    return result;
  }
  if (name == "for") return loop();
  if (name == "set") return set();
  if (name == "with") return with();
  if (name == "macro") return macro();
  if (name == "call") return call_block();
  if (name == "filter") return filter_block();
  if (name == "generation") return generation();
  if (name == "break" || name == "continue") {
    if (loops_ == 0) refuse("{} stands outside of a loop", name);
    return ladder::jinja::make(name == "break" ? Statement::Kind::loop_break : Statement::Kind::loop_continue,
                               line_);
  }
  if (name.starts_with("end") || name == "else" || name == "elif") refuse("{{% {} %}} ends nothing", name);
  refuse("the statement \"{}\" is not supported", name);
}

// After "(", up to its ")".
void Parser::parameters(Statement& macro) {
  while (!is(")")) {
    Parameter parameter;
    parameter.name = expect_name("the name of a parameter");
    parameter.symbol = symbol(parameter.name);
    if (skip_if("=")) {
      parameter.otherwise = expression();
    } else if (!macro.parameters.empty() && macro.parameters.back().otherwise != nullptr) {
      refuse("a parameter without a default follows one with a default");
    }
    macro.parameters.push_back(std::move(parameter));
    if (!skip_if(",")) break;
  }
  expect(")");
}

Target Parser::one_target(bool with_attribute) {
  const Nesting nesting(depth_);
  Target result;
  if (skip_if("(")) {
    result = target(false);
    expect(")");
    return result;
  }
  result.name = expect_name("the name of a variable");
  for (const std::string_view constant : {"true", "false", "none", "True", "False", "None", "loop", "and",
                                          "or", "not", "in", "is", "if", "else"})
    if (result.name == constant) refuse("\"{}\" cannot be assigned to", result.name);
  result.symbol = symbol(result.name);
  if (with_attribute && skip_if(".")) result.attribute = expect_name("the name of an attribute");
  return result;
}

// a    a, b    (a, b), c    namespace.attribute
Target Parser::target(bool with_attribute) {
  Target first = one_target(with_attribute);
  if (!is(",")) return first;
  Target result;
  result.elements.push_back(std::move(first));
  while (skip_if(",")) {
    if (is("=") || is("in") || is(")")) break;
    result.elements.push_back(one_target(with_attribute));
  }
  return result;
}

Tree Parser::run() {
  for (const char* name : {"loop", "caller", "varargs", "kwargs"}) symbol(name);
  tree_.body = body({});
  find_unset_names(tree_);
  return std::move(tree_);
}

Tree parse_template(std::string_view source, int& line) {
  std::vector<Token> tokens = read_tokens(source, line);
  return Parser(std::move(tokens), line).run();
}

}  // namespace ladder::jinja

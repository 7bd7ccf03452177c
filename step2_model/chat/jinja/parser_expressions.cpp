// Task 2.6.expressions: tokens to the tree of an expression, by recursive descent.
#include <algorithm>
#include <charconv>

#include "step1_layers/core/task_not_implemented.h"
#include "step2_model/chat/jinja/filters.h"
#include "step2_model/chat/jinja/parser_base.h"
#include "step2_model/chat/jinja/tests.h"

namespace ladder::jinja {

using Kind = Expression::Kind;

ExpressionPtr Parser::make(Kind kind, std::vector<ExpressionPtr> operands) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = now().line;
  for (const ExpressionPtr& operand : operands)
    if (operand != nullptr) node->depth = std::max(node->depth, operand->depth + 1);
  if (!operands.empty() && operands[0] != nullptr) node->line = operands[0]->line;
  if (node->depth > 200) refuse("more than 200 brackets, operators and statements within each other");
  node->operands = std::move(operands);
  return node;
}

ExpressionPtr Parser::binary(std::string_view op, ExpressionPtr left, ExpressionPtr right) const {
  std::vector<ExpressionPtr> operands;
  operands.push_back(std::move(left));
  operands.push_back(std::move(right));
  ExpressionPtr node = make(Kind::binary, std::move(operands));
  node->text = op;
  return node;
}

namespace {

template <class... Nodes>
std::vector<ExpressionPtr> list_of(Nodes... nodes) {
  std::vector<ExpressionPtr> list;
  (list.push_back(std::move(nodes)), ...);
  return list;
}

bool is_one_of(const Token& token, std::initializer_list<std::string_view> texts) {
  return (token.kind == TokenKind::symbol || token.kind == TokenKind::name) &&
         std::find(texts.begin(), texts.end(), token.text) != texts.end();
}

}  // namespace

// >>> task 2.6.expressions: the levels of precedence, from `a if b else c` down to the signs, and what follows a value
ExpressionPtr Parser::expression() {
  const Nesting nesting(depth_);
  ExpressionPtr node = logical_or();
  while (skip_if("if")) {
    ExpressionPtr condition = logical_or();
    ExpressionPtr otherwise = skip_if("else") ? expression() : nullptr;
    node = make(Kind::conditional, list_of(std::move(node), std::move(condition), std::move(otherwise)));
  }
  return node;
}

ExpressionPtr Parser::logical_or() {
  ExpressionPtr node = logical_and();
  while (skip_if("or")) node = make(Kind::logical_or, list_of(std::move(node), logical_and()));
  return node;
}

ExpressionPtr Parser::logical_and() {
  ExpressionPtr node = logical_not();
  while (skip_if("and")) node = make(Kind::logical_and, list_of(std::move(node), logical_not()));
  return node;
}

ExpressionPtr Parser::logical_not() {
  const Nesting nesting(depth_);
  return skip_if("not") ? make(Kind::logical_not, list_of(logical_not())) : compare();
}

// Comparisons form a chain: a < b < c is one node.
ExpressionPtr Parser::compare() {
  std::vector<ExpressionPtr> operands = list_of(sum());
  std::vector<std::string> operators;
  while (true) {
    if (is_one_of(now(), {"==", "!=", "<", "<=", ">", ">=", "in"})) {
      operators.push_back(next().text);
    } else if (is("not") && is(ahead(), "in")) {
      next();
      next();
      operators.emplace_back("not in");
    } else {
      break;
    }
    operands.push_back(sum());
  }
  if (operators.empty()) return std::move(operands[0]);
  ExpressionPtr node = make(Kind::compare, std::move(operands));
  node->operators = std::move(operators);
  return node;
}

ExpressionPtr Parser::sum() {
  ExpressionPtr node = concat();
  while (is_one_of(now(), {"+", "-"})) {
    const std::string op = next().text;
    node = binary(op, std::move(node), concat());
  }
  return node;
}

ExpressionPtr Parser::concat() {
  std::vector<ExpressionPtr> operands = list_of(product());
  while (skip_if("~")) operands.push_back(product());
  return operands.size() == 1 ? std::move(operands[0]) : make(Kind::concat, std::move(operands));
}

ExpressionPtr Parser::product() {
  ExpressionPtr node = power();
  while (is_one_of(now(), {"*", "/", "//", "%"})) {
    const std::string op = next().text;
    node = binary(op, std::move(node), power());
  }
  return node;
}

// Jinja's ** takes its left operands first, unlike Python's.
ExpressionPtr Parser::power() {
  ExpressionPtr node = unary(true);
  while (skip_if("**")) node = binary("**", std::move(node), unary(true));
  return node;
}

// -x|abs is (-x)|abs.
ExpressionPtr Parser::unary(bool with_filters) {
  const Nesting nesting(depth_);
  ExpressionPtr node;
  if (skip_if("-")) {
    node = make(Kind::negative, list_of(unary(false)));
  } else if (skip_if("+")) {
    node = make(Kind::positive, list_of(unary(false)));
  } else {
    node = primary();
  }
  node = postfix(std::move(node));
  return with_filters ? filters_and_tests(std::move(node)) : std::move(node);
}

ExpressionPtr Parser::postfix(ExpressionPtr node) {
  while (true) {
    if (skip_if(".")) {
      const Token name = next();
      if (name.kind == TokenKind::integer) {
        ExpressionPtr item = make(Kind::constant);
        item->value = Value::of(static_cast<int64_t>(std::stoll(name.text.substr(0, 18))));
        node = make(Kind::item, list_of(std::move(node), std::move(item)));
      } else {
        if (name.kind != TokenKind::name) refuse("expected a name after \".\", found \"{}\"", name.text);
        node = make(Kind::attribute, list_of(std::move(node)));
        node->text = name.text;
      }
    } else if (skip_if("[")) {
      node = subscript(std::move(node));
    } else if (skip_if("(")) {
      node = make(Kind::call, list_of(std::move(node)));
      arguments(*node);
    } else {
      return node;
    }
  }
}

// <<< task 2.6.expressions

// After "[": an index, or a slice of which any part may be left out.
ExpressionPtr Parser::subscript(ExpressionPtr subject) {
  ExpressionPtr parts[3];
  int colons = 0;
  while (!is("]")) {
    if (!is(":")) parts[colons] = expression();
    if (is("]")) break;
    expect(":");
    if (++colons > 2) refuse("a slice has three parts");
  }
  expect("]");
  if (colons > 0)
    return make(Kind::slice,
                list_of(std::move(subject), std::move(parts[0]), std::move(parts[1]), std::move(parts[2])));
  if (parts[0] == nullptr) refuse("expected an index between [ and ]");
  return make(Kind::item, list_of(std::move(subject), std::move(parts[0])));
}

ExpressionPtr Parser::tuple_or_expression(bool with_conditional) {
  std::vector<ExpressionPtr> elements;
  bool is_tuple = false;
  while (now().kind != TokenKind::variable_end && now().kind != TokenKind::block_end && !is(")") &&
         !is("in")) {
    elements.push_back(with_conditional ? expression() : logical_or());
    if (!skip_if(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && elements.empty()) refuse("expected an expression, found \"{}\"", now().text);
  return is_tuple ? make(Kind::tuple, std::move(elements)) : std::move(elements[0]);
}

ExpressionPtr Parser::string_constant() {
  ExpressionPtr node = make(Kind::constant);
  std::string text;
  while (now().kind == TokenKind::string) text += next().text;
  tree_.constants.push_back(text);
  node->value = Value(std::make_shared<const String>(Text(text, Origin::trusted), nullptr));
  return node;
}

ExpressionPtr Parser::primary() {
  const Nesting nesting(depth_);
  if (now().kind == TokenKind::string) return string_constant();
  ExpressionPtr node = make(Kind::constant);
  const Token token = next();
  if (token.kind == TokenKind::integer || token.kind == TokenKind::real) {
    const char *begin = token.text.data(), *end = begin + token.text.size();
    int64_t integer = 0;
    double real = 0;
    const auto read = token.kind == TokenKind::integer ? std::from_chars(begin, end, integer)
                                                       : std::from_chars(begin, end, real);
    if (read.ec != std::errc() || read.ptr != end) refuse("the number {} is too large", token.text);
    node->value = token.kind == TokenKind::integer ? Value::of(integer) : Value::of(real);
    return node;
  }
  if (token.kind == TokenKind::name) {
    if (token.text == "true" || token.text == "True") {
      node->value = Value::of(true);
    } else if (token.text == "false" || token.text == "False") {
      node->value = Value::of(false);
    } else if (token.text != "none" && token.text != "None") {
      for (const std::string_view reserved : {"and", "or", "not", "in", "is", "if", "else", "elif"})
        if (token.text == reserved) refuse("expected an expression, found \"{}\"", token.text);
      node->kind = Kind::name;
      node->text = token.text;
      node->symbol = symbol(token.text);
      tree_.read[static_cast<size_t>(node->symbol)] = true;
      if (token.text == "varargs" || token.text == "kwargs" || token.text == "caller")
        special_names_.insert(token.text);
    }
    return node;
  }
  if (is(token, "(")) {
    if (skip_if(")")) return make(Kind::tuple);
    ExpressionPtr inner = tuple_or_expression(true);
    expect(")");
    return inner;
  }
  if (is(token, "[")) {
    std::vector<ExpressionPtr> elements;
    while (!is("]")) {
      elements.push_back(expression());
      if (!skip_if(",")) break;
    }
    expect("]");
    return make(Kind::list, std::move(elements));
  }
  if (is(token, "{")) return dict();
  refuse("expected an expression, found \"{}\"", token.text);
}

ExpressionPtr Parser::dict() {
  std::vector<ExpressionPtr> operands;
  while (!is("}")) {
    operands.push_back(expression());
    expect(":");
    operands.push_back(expression());
    if (!skip_if(",")) break;
  }
  expect("}");
  return make(Kind::dict, std::move(operands));
}

ExpressionPtr Parser::filters_and_tests(ExpressionPtr node) {
  while (true) {
    if (skip_if("|")) {
      node = filter(std::move(node));
    } else if (skip_if("is")) {
      node = test(std::move(node));
    } else if (skip_if("(")) {
      node = make(Kind::call, list_of(std::move(node)));
      arguments(*node);
    } else {
      return node;
    }
  }
}

std::string Parser::dotted_name(std::string_view what) {
  std::string name = expect_name(what);
  while (skip_if(".")) name += "." + expect_name(what);
  return name;
}

ExpressionPtr Parser::filter(ExpressionPtr subject) {
  const int named = subject != nullptr && subject->kind == Kind::name ? subject->symbol : -1;
  ExpressionPtr node = make(Kind::filter, list_of(std::move(subject)));
  node->text = dotted_name("the name of a filter");
  node->filter = find_filter(node->text);
  if (node->filter == nullptr && conditions_ == 0) refuse_unknown("filter", node->text);
  if (named >= 0 && (node->text == "default" || node->text == "d"))
    tree_.tested[static_cast<size_t>(named)] = true;
  if (skip_if("(")) arguments(*node);
  return node;
}

ExpressionPtr Parser::test(ExpressionPtr subject) {
  const int named = subject->kind == Kind::name ? subject->symbol : -1;
  const bool negated = skip_if("not");
  ExpressionPtr node = make(Kind::test, list_of(std::move(subject)));
  node->text = dotted_name("the name of a test");
  node->test = find_test(node->text);
  if (node->test == nullptr && conditions_ == 0) refuse_unknown("test", node->text);
  if (named >= 0 && (node->text == "defined" || node->text == "undefined"))
    tree_.tested[static_cast<size_t>(named)] = true;
  const TokenKind kind = now().kind;
  if (skip_if("(")) {
    arguments(*node);
  } else if (((kind == TokenKind::name && !is_one_of(now(), {"else", "or", "and"})) ||
              kind == TokenKind::string || kind == TokenKind::integer || kind == TokenKind::real || is("[") ||
              is("{")) &&
             !is_one_of(now(), {"if", "in", "not"})) {
    if (is("is")) refuse("a test cannot follow a test");
    node->operands.push_back(postfix(primary()));
    node->depth = std::max(node->depth, node->operands.back()->depth + 1);
  }
  return negated ? make(Kind::logical_not, list_of(std::move(node))) : std::move(node);
}

// After "(", up to its ")".
void Parser::arguments(Expression& call) {
  const auto add = [&](const ExpressionPtr& node) { call.depth = std::max(call.depth, node->depth + 1); };
  while (!is(")")) {
    if (is("*") || is("**")) refuse("arguments with * and ** are not supported");
    if (now().kind == TokenKind::name && is(ahead(), "=")) {
      std::string name = next().text;
      next();
      for (const auto& [other, value] : call.named)
        if (other == name) refuse("the argument {} is given twice", name);
      call.named.emplace_back(std::move(name), expression());
      add(call.named.back().second);
    } else {
      if (!call.named.empty()) refuse("an argument without a name follows one with a name");
      call.operands.push_back(expression());
      add(call.operands.back());
    }
    if (!skip_if(",")) break;
  }
  expect(")");
}

}  // namespace ladder::jinja

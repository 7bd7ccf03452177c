#include "tests/step2_model/jinja_tree.h"

namespace ladder::testing {
namespace {

using jinja::Body;
using jinja::Expression;
using jinja::Statement;
using jinja::Target;

std::string shown_value(const jinja::Value& value) {
  if (value.string() != nullptr) return "'" + value.string()->text.bytes() + "'";
  if (value.is_none()) return "None";
  if (value.is<bool>()) return value.boolean() ? "True" : "False";
  return value.is_integer() ? std::to_string(value.integer()) : std::to_string(value.number());
}

std::string shown_or(const jinja::ExpressionPtr& expression, const std::string& otherwise) {
  return expression == nullptr ? otherwise : shown(*expression);
}

// Operands from `first` on and the named ones, with commas.
std::string shown_list(const Expression& node, size_t first) {
  std::string text;
  const auto add = [&](const std::string& item) { text += (text.empty() ? "" : ", ") + item; };
  for (size_t i = first; i < node.operands.size(); ++i) add(shown(*node.operands[i]));
  for (const auto& [name, value] : node.named) add(name + "=" + shown(*value));
  return text;
}

// A filter or a test with its arguments, if there are any.
std::string shown_applied(const Expression& node) {
  const std::string arguments = shown_list(node, 1);
  return node.text + (arguments.empty() ? "" : "(" + arguments + ")");
}

std::string shown_target(const Target& target) {
  if (target.elements.empty()) return target.name + (target.attribute.empty() ? "" : "." + target.attribute);
  std::string text;
  for (const Target& element : target.elements) text += (text.empty() ? "(" : ", ") + shown_target(element);
  return text + ")";
}

std::string shown_block(const Body& body) {
  return " [" + shown(body) + "]";
}

std::string shown_parameters(const Statement& macro) {
  std::string text;
  for (const jinja::Parameter& parameter : macro.parameters)
    text += (text.empty() ? "" : ", ") + parameter.name +
            (parameter.otherwise == nullptr ? "" : "=" + shown(*parameter.otherwise));
  return "(" + text + ")" + (macro.takes_rest ? " varargs" : "") + (macro.takes_keywords ? " kwargs" : "") +
         (macro.takes_caller ? " caller" : "");
}

std::string shown_statement(const Statement& statement) {
  using Kind = Statement::Kind;
  std::string text;
  switch (statement.kind) {
    case Kind::data:
      return "\"" + statement.value.string()->text.bytes() + "\"";
    case Kind::output:
      return shown(*statement.expression);
    case Kind::condition:
      for (const Statement::Branch& branch : statement.branches) {
        text += text.empty() ? "" : " ";
        text += branch.condition == nullptr ? "else" : "if " + shown(*branch.condition);
        text += shown_block(branch.body);
      }
      return text;
    case Kind::loop:
      text = "for " + shown_target(statement.target) + " in " + shown(*statement.expression);
      if (statement.condition != nullptr) text += " if " + shown(*statement.condition);
      text += shown_block(statement.body);
      return statement.otherwise.statements.empty() ? text
                                                    : text + " else" + shown_block(statement.otherwise);
    case Kind::set:
      return "set " + shown_target(statement.target) + " = " + shown(*statement.expression);
    case Kind::set_block:
      text = "set " + shown_target(statement.target);
      if (statement.expression != nullptr) text += " " + shown(*statement.expression);
      return text + shown_block(statement.body);
    case Kind::with:
      text = "with";
      for (const auto& [target, value] : statement.assignments)
        text += " " + shown_target(target) + "=" + shown(*value);
      return text + shown_block(statement.body);
    case Kind::macro:
      return "macro " + statement.name + shown_parameters(statement) + shown_block(statement.body);
    case Kind::call_block:
      return "call" + shown_parameters(statement) + " " + shown(*statement.expression) +
             shown_block(statement.body);
    case Kind::filter_block:
      return "filter " + shown(*statement.expression) + shown_block(statement.body);
    case Kind::scope:
      return "generation" + shown_block(statement.body);
    case Kind::loop_break:
      return "break";
    default:
      return "continue";
  }
}

}  // namespace

std::string shown(const Expression& node) {
  using Kind = Expression::Kind;
  const auto operand = [&](size_t i) { return shown_or(node.operands[i], ""); };
  std::string text;
  switch (node.kind) {
    case Kind::constant:
      return shown_value(node.value);
    case Kind::name:
      return node.text;
    case Kind::list:
      return "[" + shown_list(node, 0) + "]";
    case Kind::tuple:
      return "(" + shown_list(node, 0) + (node.operands.size() == 1 ? ",)" : ")");
    case Kind::dict:
      for (size_t i = 0; i < node.operands.size(); i += 2)
        text += (text.empty() ? "" : ", ") + operand(i) + ": " + operand(i + 1);
      return "{" + text + "}";
    case Kind::attribute:
      return operand(0) + "." + node.text;
    case Kind::item:
      return operand(0) + "[" + operand(1) + "]";
    case Kind::slice:
      return operand(0) + "[" + operand(1) + ":" + operand(2) + ":" + operand(3) + "]";
    case Kind::call:
      return operand(0) + "(" + shown_list(node, 1) + ")";
    case Kind::filter:
      return "(" + shown_or(node.operands[0], "_") + " | " + shown_applied(node) + ")";
    case Kind::test:
      return "(" + operand(0) + " is " + shown_applied(node) + ")";
    case Kind::conditional:
      return "(" + operand(0) + " if " + operand(1) +
             (node.operands[2] == nullptr ? "" : " else " + operand(2)) + ")";
    case Kind::logical_not:
      return "(not " + operand(0) + ")";
    case Kind::logical_and:
      return "(" + operand(0) + " and " + operand(1) + ")";
    case Kind::logical_or:
      return "(" + operand(0) + " or " + operand(1) + ")";
    case Kind::negative:
      return "(-" + operand(0) + ")";
    case Kind::positive:
      return "(+" + operand(0) + ")";
    case Kind::binary:
      return "(" + operand(0) + " " + node.text + " " + operand(1) + ")";
    case Kind::concat:
      for (size_t i = 0; i < node.operands.size(); ++i) text += (i == 0 ? "" : " ~ ") + operand(i);
      return "(" + text + ")";
    case Kind::compare:
      text = operand(0);
      for (size_t i = 0; i < node.operators.size(); ++i)
        text += " " + node.operators[i] + " " + operand(i + 1);
      return "(" + text + ")";
  }
  return "?";
}

std::string shown(const Body& body) {
  std::string text;
  for (const auto& statement : body.statements)
    text += (text.empty() ? "" : " ") + shown_statement(*statement);
  return text;
}

}  // namespace ladder::testing

// Task 2.6.evaluate: the value of an expression.
#include <algorithm>

#include "step1_layers/core/task_not_implemented.h"
#include "step2_model/chat/jinja/filters.h"
#include "step2_model/chat/jinja/interpreter.h"
#include "step2_model/chat/jinja/methods.h"
#include "step2_model/chat/jinja/print.h"
#include "step2_model/chat/jinja/tests.h"

namespace ladder::jinja {

using Kind = Expression::Kind;

// >>> task 2.6.evaluate: operators that stop early, chains of comparisons, calls of methods and functions
// a < b < c evaluates b once, and c only where a < b.
bool Interpreter::evaluate_compare(const Expression& node) {
  Value left = evaluate(*node.operands[0]);
  for (size_t i = 0; i < node.operators.size(); ++i) {
    Value right = evaluate(*node.operands[i + 1]);
    const std::string& op = node.operators[i];
    bool holds = false;
    if (op == "==" || op == "!=") {
      holds = equal(left, right, budget_) == (op == "==");
    } else if (op == "in" || op == "not in") {
      holds = contains(right, left) == (op == "in");
    } else if (op == "<" || op == ">=") {
      holds = less(left, right, budget_) == (op == "<");
    } else {
      holds = less(right, left, budget_) == (op == ">");
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

// subject.name(...) calls a method where the subject's type has one of this name, and else what the attribute holds.
// `caller` is the body of a call block.
Value Interpreter::evaluate_call(const Expression& node, const Value* caller) {
  const Expression& callee = *node.operands[0];
  Value subject, function;
  bool is_method = false;
  if (callee.kind == Kind::attribute) {
    subject = evaluate(*callee.operands[0]);
    is_method = has_method(subject, callee.text);
    if (!is_method) function = attribute(subject, callee.text);
  } else {
    function = evaluate(callee);
  }
  Arguments arguments = evaluate_arguments(node);
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  line_ = node.line;
  return is_method ? call_method(*this, subject, callee.text, arguments)
                   : call(function, std::move(arguments));
}

Value Interpreter::evaluate(const Expression& node) {
  const Level level(budget_);
  budget_.step();
  const auto operand = [&](size_t i) { return evaluate(*node.operands[i]); };
  switch (node.kind) {
    case Kind::constant:
      return node.value;
    case Kind::name: {
      const Value* value = find(node.symbol);
      return value != nullptr ? *value : Value::undefined(node.text);
    }
    case Kind::list:
    case Kind::tuple: {
      std::vector<Value> items;
      items.reserve(node.operands.size());
      for (size_t i = 0; i < node.operands.size(); ++i) items.push_back(operand(i));
      return list(std::move(items), node.kind == Kind::list ? Sequence::list : Sequence::tuple);
    }
    case Kind::dict:
      return evaluate_dict(node);
    case Kind::attribute:
      return attribute(operand(0), node.text);
    case Kind::item: {
      const Value subject = operand(0);
      return item(subject, operand(1));
    }
    case Kind::slice: {
      const Value subject = operand(0);
      Value parts[3];
      for (size_t i = 0; i < 3; ++i)
        if (node.operands[i + 1] != nullptr) parts[i] = operand(i + 1);
      return slice(subject, parts[0], parts[1], parts[2]);
    }
    case Kind::call:
      return evaluate_call(node);
    case Kind::filter:
      return evaluate_filter(node, nullptr);
    case Kind::test:
      return Value::of(evaluate_test(node));
    case Kind::conditional:
      if (is_true(operand(1))) return operand(0);
      return node.operands[2] != nullptr ? operand(2) : Value::undefined("the inline if without an else");
    case Kind::logical_not:
      return Value::of(!is_true(operand(0)));
    case Kind::logical_and: {
      Value left = operand(0);
      return is_true(left) ? operand(1) : left;
    }
    case Kind::logical_or: {
      Value left = operand(0);
      return is_true(left) ? left : operand(1);
    }
    case Kind::negative: {
      const Value value = operand(0);
      return value.is<double>() ? Value::of(-value.number()) : binary("-", Value::of(int64_t{0}), value);
    }
    case Kind::positive:
      return binary("+", Value::of(int64_t{0}), operand(0));
    case Kind::binary: {
      const Value left = operand(0);
      return binary(node.text, left, operand(1));
    }
    case Kind::concat: {
      TextBuilder joined(budget_);
      for (size_t i = 0; i < node.operands.size(); ++i) joined.append(print(*this, operand(i)));
      return text(joined.take());
    }
    case Kind::compare:
      return Value::of(evaluate_compare(node));
  }
  refuse("an expression of an unknown kind");
}
// <<< task 2.6.evaluate

// `given` is the subject of a filter that has none in the tree: the text of a block.
Value Interpreter::evaluate_filter(const Expression& node, const Value* given) {
  const Value subject = node.operands[0] == nullptr              ? *given
                        : node.operands[0]->kind == Kind::filter ? evaluate_filter(*node.operands[0], given)
                                                                 : evaluate(*node.operands[0]);
  const Level level(budget_);
  const Arguments arguments = evaluate_arguments(node);
  budget_.step();
  line_ = node.line;
  if (node.filter == nullptr) refuse_unknown("filter", node.text);
  return node.filter->apply(*this, subject, arguments);
}

// The arguments of a call, a filter or a test: all operands but the first, and the named ones.
Arguments Interpreter::evaluate_arguments(const Expression& node) {
  Arguments arguments;
  arguments.positional.reserve(node.operands.size());
  for (size_t i = 1; i < node.operands.size(); ++i)
    arguments.positional.push_back(evaluate(*node.operands[i]));
  for (const auto& [name, value] : node.named) arguments.named.emplace_back(name, evaluate(*value));
  return arguments;
}

bool Interpreter::evaluate_test(const Expression& node) {
  const Value subject = evaluate(*node.operands[0]);
  if (node.test == nullptr) {
    line_ = node.line;
    refuse_unknown("test", node.text);
  }
  return node.test->holds(*this, subject, evaluate_arguments(node));
}

// A key that is written twice has its first place and its last value.
Value Interpreter::evaluate_dict(const Expression& node) {
  Dict::Items items;
  for (size_t i = 0; i < node.operands.size(); i += 2) {
    Value key = evaluate(*node.operands[i]);
    Value value = evaluate(*node.operands[i + 1]);
    check_key(key, budget_);
    const auto same = std::find_if(items.begin(), items.end(),
                                   [&](const auto& item) { return equal(item.first, key, budget_); });
    if (same != items.end()) {
      same->second = std::move(value);
    } else {
      items.emplace_back(std::move(key), std::move(value));
    }
  }
  return dict(std::move(items));
}

}  // namespace ladder::jinja

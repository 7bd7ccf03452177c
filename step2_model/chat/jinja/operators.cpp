// Arithmetic as Python has it, on integers of 64 bits.
#include <cmath>
#include <cstring>

#include "step2_model/chat/jinja/interpreter.h"
#include "step2_model/chat/jinja/print.h"
#include "step2_model/chat/jinja/python_text.h"
#include "step2_model/chat/jinja/text_search.h"

namespace ladder::jinja {
namespace {

[[noreturn]] void refuse_operands(std::string_view op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b})
    if (value->is_undefined()) refuse("'{}' is undefined", value->undefined_name());
  refuse("{} is not defined between a {} and a {}", op, a.type_name(), b.type_name());
}

Value integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) refuse("division by zero");
    return Value::of(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  bool fits = true;
  while (exponent > 0 && fits) {
    if ((exponent & 1) != 0) fits = !__builtin_mul_overflow(result, base, &result);
    exponent >>= 1;
    if (exponent > 0 && fits) fits = !__builtin_mul_overflow(base, base, &base);
  }
  if (!fits) refuse("an integer needs more than 64 bits");
  return Value::of(result);
}

// Both are integers. // and % round towards minus infinity.
Value integers(char op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflows = false;
  switch (op) {
    case '+':
      overflows = __builtin_add_overflow(a, b, &result);
      break;
    case '-':
      overflows = __builtin_sub_overflow(a, b, &result);
      break;
    case '*':
      overflows = __builtin_mul_overflow(a, b, &result);
      break;
    default:
      if (b == 0) refuse("division by zero");
      overflows = a == INT64_MIN && b == -1;
      if (overflows) break;
      result = op == '%' ? a % b : a / b;
      if (a % b != 0 && (a % b < 0) != (b < 0)) result += op == '%' ? b : -1;
  }
  if (overflows) refuse("an integer needs more than 64 bits");
  return Value::of(result);
}

double floats(std::string_view op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") {
    if ((a == 0 && b < 0) || (a < 0 && b != std::floor(b))) refuse("this power is no real number");
    return std::pow(a, b);
  }
  if (b == 0) refuse("division by zero");
  if (op == "/") return a / b;
  double rest = std::fmod(a, b);
  if (op == "%") {
    if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
    return rest == 0 ? std::copysign(0.0, b) : rest;
  }
  double quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

// text * n and list * n, either way round.
Value repeated(Interpreter& interpreter, const Value& value, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (const String* string = value.string()) {
    if (string->text.empty()) return value;
    interpreter.budget().require(static_cast<size_t>(times), string->text.size());
    TextBuilder result(interpreter.budget());
    for (int64_t i = 0; i < times; ++i) result.append(string->text);
    return interpreter.text(result.take());
  }
  const std::vector<Value>& once = value.list()->items;
  interpreter.budget().require(static_cast<size_t>(times), once.size() * sizeof(Value));
  std::vector<Value> items;
  for (int64_t i = 0; i < times && !once.empty(); ++i) {
    interpreter.budget().step(static_cast<int64_t>(once.size()));
    items.insert(items.end(), once.begin(), once.end());
  }
  return interpreter.list(std::move(items), value.list()->kind);
}

bool can_repeat(const Value& value) {
  return value.string() != nullptr || (value.list() != nullptr && value.list()->kind <= Sequence::tuple);
}

}  // namespace

Value Interpreter::binary(std::string_view op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) {
      if (op == "**") return integer_power(a.integer(), b.integer());
      if (op != "/") return integers(op[0], a.integer(), b.integer());
    }
    return Value::of(floats(op, a.number(), b.number()));
  }
  const String *left = a.string(), *right = b.string();
  if (op == "+" && left != nullptr && right != nullptr) {
    TextBuilder sum(budget_);
    const bool markup = left->markup || right->markup;
    for (const String* part : {left, right})
      sum.append(markup && !part->markup ? escape_html(budget_, part->text) : part->text);
    return text(sum.take(), markup);
  }
  if (op == "+" && can_repeat(a) && a.list() != nullptr && b.list() != nullptr &&
      a.list()->kind == b.list()->kind) {
    std::vector<Value> items = a.list()->items;
    items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
    return list(std::move(items), a.list()->kind,
                a.list()->origin == b.list()->origin ? a.list()->origin : Origin::outside);
  }
  if (op == "*" && can_repeat(a) && b.is_integer()) return repeated(*this, a, b.integer());
  if (op == "*" && can_repeat(b) && a.is_integer()) return repeated(*this, b, a.integer());
  if (op == "%" && left != nullptr) {
    if (b.list() != nullptr && b.list()->kind == Sequence::tuple)
      return format_percent(*this, left->text, b.list()->items);
    return format_percent(*this, left->text, {&b, 1});
  }
  refuse_operands(op, a, b);
}

bool Interpreter::contains(const Value& container, const Value& element) {
  if (const String* text = container.string()) {
    const String* part = element.string();
    if (element.is_undefined()) refuse("'{}' is undefined", element.undefined_name());
    if (part == nullptr) refuse("expected a str before in, found a {}", element.type_name());
    budget_.touch(text->text.size());
    return find_bytes(text->text.bytes(), part->text.bytes(), 0) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) {
    check_key(element, budget_);
    return dict->find(element, budget_) != nullptr;
  }
  const std::shared_ptr<List> items = iterate(container);
  for (const Value& item : items->items)
    if (equal(item, element, budget_)) return true;
  return false;
}

}  // namespace ladder::jinja

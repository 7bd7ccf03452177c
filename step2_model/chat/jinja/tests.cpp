#include "step2_model/chat/jinja/tests.h"

#include "step2_model/chat/jinja/arguments.h"
#include "step2_model/chat/jinja/filters.h"
#include "step2_model/chat/jinja/interpreter.h"
#include "step2_model/chat/jinja/methods.h"
#include "step2_model/chat/jinja/print.h"
#include "step2_model/chat/jinja/python_text.h"

namespace ladder::jinja {
namespace {

template <bool (*holds)(const Value&)>
bool plain(Interpreter&, const Value& subject, const Arguments& given) {
  expect_no_arguments(given, "the test");
  return holds(subject);
}

bool is_defined(const Value& value) {
  return !value.is_undefined();
}
bool is_undefined(const Value& value) {
  return value.is_undefined();
}
bool is_none(const Value& value) {
  return value.is_none();
}
bool is_boolean(const Value& value) {
  return value.is<bool>();
}
bool is_exactly_true(const Value& value) {
  return value.is<bool>() && value.boolean();
}
bool is_exactly_false(const Value& value) {
  return value.is<bool>() && !value.boolean();
}
bool is_integer(const Value& value) {
  return value.is<int64_t>();
}
bool is_float(const Value& value) {
  return value.is<double>();
}
bool is_number(const Value& value) {
  return value.is_number();
}
bool is_string(const Value& value) {
  return value.string() != nullptr;
}
bool is_mapping(const Value& value) {
  return value.dict() != nullptr;
}
bool is_callable(const Value& value) {
  return value.callable() != nullptr;
}
bool is_sequence(const Value& value) {
  const List* list = value.list();
  return value.is_undefined() || value.string() != nullptr || value.dict() != nullptr ||
         (list != nullptr && (list->kind <= Sequence::tuple || list->kind == Sequence::range));
}
bool is_iterable(const Value& value) {
  return value.is_undefined() || value.string() != nullptr || value.dict() != nullptr ||
         value.list() != nullptr || value.loop() != nullptr;
}

int64_t integer_of(const Value& value, std::string_view test) {
  if (value.is_undefined()) refuse("'{}' is undefined", value.undefined_name());
  if (!value.is_integer()) refuse("{}: expected an int, found a {}", test, value.type_name());
  return value.integer();
}

bool is_odd(const Value& value) {
  return integer_of(value, "odd") % 2 != 0;
}
bool is_even(const Value& value) {
  return integer_of(value, "even") % 2 == 0;
}

bool is_divisible(Interpreter&, const Value& subject, const Arguments& given) {
  const auto [by] = bind<1>(given, "divisibleby", {"num"}, 1);
  const int64_t divisor = integer_of(*by, "divisibleby");
  if (divisor == 0) refuse("division by zero");
  return divisor == -1 || integer_of(subject, "divisibleby") % divisor == 0;
}

// Python's str.isupper and islower: some letter has a case, and all that have one have this one.
bool has_case(Interpreter& in, const Value& subject, const Arguments& given, bool upper_case) {
  expect_no_arguments(given, "upper and lower");
  const Value text = in.text(print(in, subject));
  return is_true(call_method(in, text, upper_case ? "isupper" : "islower", {}));
}
bool is_upper(Interpreter& in, const Value& subject, const Arguments& given) {
  return has_case(in, subject, given, true);
}
bool is_lower(Interpreter& in, const Value& subject, const Arguments& given) {
  return has_case(in, subject, given, false);
}

bool is_in(Interpreter& in, const Value& subject, const Arguments& given) {
  const auto [container] = bind<1>(given, "in", {"seq"}, 1);
  return in.contains(*container, subject);
}

bool is_same(Interpreter& in, const Value& subject, const Arguments& given) {
  const auto [other] = bind<1>(given, "sameas", {"other"}, 1);
  if (subject.list() != nullptr) return subject.list() == other->list();
  if (subject.dict() != nullptr) return subject.dict() == other->dict();
  return subject.type_name() == other->type_name() && equal(subject, *other, in.budget());
}

bool is_filter(Interpreter&, const Value& subject, const Arguments& given) {
  expect_no_arguments(given, "filter");
  return subject.string() != nullptr && find_filter(subject.string()->text.bytes()) != nullptr;
}

bool is_test(Interpreter&, const Value& subject, const Arguments& given) {
  expect_no_arguments(given, "test");
  return subject.string() != nullptr && find_test(subject.string()->text.bytes()) != nullptr;
}

enum class Order : uint8_t { eq, ne, lt, le, gt, ge };

template <Order order>
bool compares(Interpreter& in, const Value& subject, const Arguments& given) {
  const auto [other] = bind<1>(given, "a comparison", {"b"}, 1);
  Budget& budget = in.budget();
  switch (order) {
    case Order::eq:
      return equal(subject, *other, budget);
    case Order::ne:
      return !equal(subject, *other, budget);
    case Order::lt:
      return less(subject, *other, budget);
    case Order::le:
      return !less(*other, subject, budget);
    case Order::gt:
      return less(*other, subject, budget);
    default:
      return !less(subject, *other, budget);
  }
}

constexpr TestEntry kTests[] = {
    {"!=", compares<Order::ne>},
    {"<", compares<Order::lt>},
    {"<=", compares<Order::le>},
    {"==", compares<Order::eq>},
    {">", compares<Order::gt>},
    {">=", compares<Order::ge>},
    {"boolean", plain<is_boolean>},
    {"callable", plain<is_callable>},
    {"defined", plain<is_defined>},
    {"divisibleby", is_divisible},
    {"eq", compares<Order::eq>},
    {"equalto", compares<Order::eq>},
    {"even", plain<is_even>},
    {"false", plain<is_exactly_false>},
    {"filter", is_filter},
    {"float", plain<is_float>},
    {"ge", compares<Order::ge>},
    {"greaterthan", compares<Order::gt>},
    {"gt", compares<Order::gt>},
    {"in", is_in},
    {"integer", plain<is_integer>},
    {"iterable", plain<is_iterable>},
    {"le", compares<Order::le>},
    {"lessthan", compares<Order::lt>},
    {"lower", is_lower},
    {"lt", compares<Order::lt>},
    {"mapping", plain<is_mapping>},
    {"ne", compares<Order::ne>},
    {"none", plain<is_none>},
    {"number", plain<is_number>},
    {"odd", plain<is_odd>},
    {"sameas", is_same},
    {"sequence", plain<is_sequence>},
    {"string", plain<is_string>},
    {"test", is_test},
    {"true", plain<is_exactly_true>},
    {"undefined", plain<is_undefined>},
    {"upper", is_upper},
};

}  // namespace

const TestEntry* find_test(std::string_view name) {
  for (const TestEntry& test : kTests)
    if (test.name == name) return &test;
  return nullptr;
}

}  // namespace ladder::jinja

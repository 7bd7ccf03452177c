#include "step2_model/chat/jinja/methods.h"

#include <algorithm>

#include "step2_model/chat/jinja/arguments.h"
#include "step2_model/chat/jinja/interpreter.h"

namespace ladder::jinja {
namespace {

Value get(Interpreter& in, const Value& self, const Arguments& given) {
  const auto [key, otherwise] = bind<2>(given, "get", {"key", "default"}, 1);
  check_key(*key, in.budget());
  const Value* found = self.dict()->find(*key, in.budget());
  return found != nullptr ? *found : otherwise != nullptr ? *otherwise : Value();
}

Value keys(Interpreter& in, const Value& self, const Arguments& given) {
  expect_no_arguments(given, "keys");
  std::vector<Value> list;
  for (const auto& [key, value] : self.dict()->items) list.push_back(key);
  return in.list(std::move(list), Sequence::keys, self.dict()->origin);
}

Value values(Interpreter& in, const Value& self, const Arguments& given) {
  expect_no_arguments(given, "values");
  std::vector<Value> list;
  for (const auto& [key, value] : self.dict()->items) list.push_back(value);
  return in.list(std::move(list), Sequence::values, self.dict()->origin);
}

Value items(Interpreter& in, const Value& self, const Arguments& given) {
  expect_no_arguments(given, "items");
  std::vector<Value> list;
  for (const auto& [key, value] : self.dict()->items)
    list.push_back(in.list({key, value}, Sequence::tuple, self.dict()->origin));
  return in.list(std::move(list), Sequence::items, self.dict()->origin);
}

Value copy(Interpreter&, const Value& self, const Arguments& given) {
  expect_no_arguments(given, "copy");
  return self;
}

// Sandboxed templates change nothing, and nor do ours.
Value changes(Interpreter&, const Value& self, const Arguments&) {
  refuse("a template cannot change a {}", self.type_name());
}

constexpr MethodEntry kDictMethods[] = {
    {"clear", changes},  {"copy", copy},     {"get", get},         {"items", items},
    {"keys", keys},      {"pop", changes},   {"popitem", changes}, {"setdefault", changes},
    {"update", changes}, {"values", values},
};

Value list_count(Interpreter& in, const Value& self, const Arguments& given) {
  const auto [sought] = bind<1>(given, "count", {"value"}, 1);
  int64_t number = 0;
  for (const Value& item : self.list()->items) number += equal(item, *sought, in.budget());
  return Value::of(number);
}

Value list_index(Interpreter& in, const Value& self, const Arguments& given) {
  const auto [sought] = bind<1>(given, "index", {"value"}, 1);
  const std::vector<Value>& list = self.list()->items;
  for (size_t i = 0; i < list.size(); ++i)
    if (equal(list[i], *sought, in.budget())) return Value::of(static_cast<int64_t>(i));
  refuse("index: the value is not in the {}", self.type_name());
}

constexpr MethodEntry kListMethods[] = {
    {"append", changes}, {"clear", changes},    {"copy", copy},      {"count", list_count},
    {"extend", changes}, {"index", list_index}, {"insert", changes}, {"pop", changes},
    {"remove", changes}, {"reverse", changes},  {"sort", changes},
};

constexpr MethodEntry kTupleMethods[] = {{"count", list_count}, {"index", list_index}};

Value cycle(Interpreter&, const Value& self, const Arguments& given) {
  if (given.positional.empty()) refuse("loop.cycle needs values");
  return given.positional[self.loop()->index % given.positional.size()];
}

// A loop that remembers itself would never be given back.
void refuse_loops(Budget& budget, const Value& value) {
  budget.step();
  if (value.loop() != nullptr || value.callable() != nullptr) refuse("loop.changed compares plain values");
  if (const List* list = value.list())
    for (const Value& item : list->items) refuse_loops(budget, item);
  if (const Dict* dict = value.dict())
    for (const auto& [key, item] : dict->items) {
      refuse_loops(budget, key);
      refuse_loops(budget, item);
    }
}

Value changed(Interpreter& in, const Value& self, const Arguments& given) {
  std::optional<std::vector<Value>>& last = self.loop()->changed;
  if (last && std::equal(last->begin(), last->end(), given.positional.begin(), given.positional.end(),
                         [&](const Value& a, const Value& b) { return equal(a, b, in.budget()); }))
    return Value::of(false);
  for (const Value& value : given.positional) refuse_loops(in.budget(), value);
  last = given.positional;
  return Value::of(true);
}

constexpr MethodEntry kLoopMethods[] = {{"changed", changed}, {"cycle", cycle}};

Method find_method_of(const Value& value, std::string_view name) {
  if (value.string() != nullptr) return find_text_method(name);
  if (value.dict() != nullptr) return method_named(kDictMethods, name);
  if (value.loop() != nullptr) return method_named(kLoopMethods, name);
  if (const List* list = value.list()) {
    if (list->kind == Sequence::list) return method_named(kListMethods, name);
    if (list->kind == Sequence::tuple || list->kind == Sequence::range)
      return method_named(kTupleMethods, name);
  }
  return nullptr;
}

}  // namespace

bool has_method(const Value& value, std::string_view name) {
  return find_method_of(value, name) != nullptr;
}

Value call_method(Interpreter& interpreter, const Value& value, std::string_view name,
                  const Arguments& arguments) {
  return find_method_of(value, name)(interpreter, value, arguments);
}

}  // namespace ladder::jinja

// map, select, reject, selectattr, rejectattr: filters that apply other filters and tests to every element.
#include <algorithm>

#include "step2_model/chat/jinja/arguments.h"
#include "step2_model/chat/jinja/filters.h"
#include "step2_model/chat/jinja/interpreter.h"
#include "step2_model/chat/jinja/python_text.h"
#include "step2_model/chat/jinja/selection.h"
#include "step2_model/chat/jinja/tests.h"

namespace ladder::jinja {

Value path_of(Interpreter& in, const Value& item, const Value& path) {
  in.budget().step();
  const String* name = path.string();
  if (name == nullptr) return in.item(item, path);
  Value value = item;
  const std::string dot = ".";
  for (const Text& part : split(in.budget(), name->text, &dot, -1, false)) {
    const bool is_index = !part.empty() && std::all_of(part.bytes().begin(), part.bytes().end(),
                                                       [](char c) { return c >= '0' && c <= '9'; });
    value = in.item(value, is_index ? Value::of(parse_integer(in.budget(), part.bytes(), 10).value_or(0))
                                    : in.text(part));
  }
  return value;
}

namespace {

// The arguments behind the first `count`.
Arguments behind(const Arguments& given, size_t count) {
  Arguments rest;
  rest.positional.assign(given.positional.begin() + static_cast<std::ptrdiff_t>(count),
                         given.positional.end());
  rest.named = given.named;
  return rest;
}

Value map(Interpreter& in, const Value& subject, const Arguments& given) {
  std::vector<Value> mapped;
  if (!is_true(subject)) return in.list({}, Sequence::iterator);  // None, too
  if (given.positional.empty()) {
    const auto [attribute, otherwise] = bind<2>(given, "map", {"attribute", "default"}, 1);
    for (const auto elements = in.iterate(subject); const Value& item : elements->items) {
      Value value = path_of(in, item, *attribute);
      mapped.push_back(value.is_undefined() && otherwise != nullptr ? *otherwise : std::move(value));
    }
  } else {
    const std::string& name = string_argument(&given.positional[0], "map").text.bytes();
    const FilterEntry* filter = find_filter(name);
    if (filter == nullptr) refuse_unknown("filter", name);
    const Arguments rest = behind(given, 1);
    const Level level(in.budget());
    for (const auto elements = in.iterate(subject); const Value& item : elements->items) {
      in.budget().step();
      mapped.push_back(filter->apply(in, item, rest));
    }
  }
  return in.list(std::move(mapped), Sequence::iterator);
}

// The elements for which a test holds, or with `wanted` false for which it does not; without a test, truth.
Value chosen(Interpreter& in, const Value& subject, const Arguments& given, bool by_attribute, bool wanted) {
  if (!is_true(subject)) return in.list({}, Sequence::iterator);  // None, too
  size_t used = 0;
  Value attribute;
  if (by_attribute) {
    if (given.positional.empty()) refuse("selectattr and rejectattr need the name of an attribute");
    attribute = given.positional[used++];
  }
  const TestEntry* test = nullptr;
  if (used < given.positional.size()) {
    const std::string& name = string_argument(&given.positional[used++], "select").text.bytes();
    test = find_test(name);
    if (test == nullptr) refuse_unknown("test", name);
  }
  const Arguments rest = behind(given, used);
  std::vector<Value> kept;
  const Level level(in.budget());
  for (const auto elements = in.iterate(subject); const Value& item : elements->items) {
    in.budget().step();
    const Value looked_at = by_attribute ? path_of(in, item, attribute) : item;
    if ((test == nullptr ? is_true(looked_at) : test->holds(in, looked_at, rest)) == wanted)
      kept.push_back(item);
  }
  return in.list(std::move(kept), Sequence::iterator);
}

template <bool by_attribute, bool wanted>
Value choose(Interpreter& in, const Value& subject, const Arguments& given) {
  return chosen(in, subject, given, by_attribute, wanted);
}

constexpr FilterEntry kFilters[] = {
    {"map", map},
    {"reject", choose<false, false>},
    {"rejectattr", choose<true, false>},
    {"select", choose<false, true>},
    {"selectattr", choose<true, true>},
};

}  // namespace

const FilterEntry* find_selection_filter(std::string_view name) {
  for (const FilterEntry& filter : kFilters)
    if (filter.name == name) return &filter;
  return nullptr;
}

}  // namespace ladder::jinja

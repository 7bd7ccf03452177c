// Filters of lists and dicts.
#include <algorithm>

#include "step2_model/chat/jinja/arguments.h"
#include "step2_model/chat/jinja/filters.h"
#include "step2_model/chat/jinja/interpreter.h"
#include "step2_model/chat/jinja/print.h"
#include "step2_model/chat/jinja/python_text.h"
#include "step2_model/chat/jinja/selection.h"

namespace ladder::jinja {
namespace {

Value length(Interpreter&, const Value& subject, const Arguments& given) {
  expect_no_arguments(given, "length");
  if (subject.is_undefined()) return Value::of(int64_t{0});
  if (const String* text = subject.string()) return Value::of(static_cast<int64_t>(text->length));
  if (const Dict* dict = subject.dict()) return Value::of(static_cast<int64_t>(dict->items.size()));
  const List* list = subject.list();
  if (list == nullptr || list->kind == Sequence::iterator) refuse("a {} has no length", subject.type_name());
  return Value::of(static_cast<int64_t>(list->items.size()));
}

Value first(Interpreter& in, const Value& subject, const Arguments& given) {
  expect_no_arguments(given, "first");
  const std::shared_ptr<List> items = in.iterate(subject);
  return items->items.empty() ? Value::undefined("the first of nothing") : items->items.front();
}

Value last(Interpreter& in, const Value& subject, const Arguments& given) {
  expect_no_arguments(given, "last");
  if (subject.list() != nullptr && subject.list()->kind == Sequence::iterator)
    refuse("last: an iterator cannot be reversed");
  const std::shared_ptr<List> items = in.iterate(subject);
  return items->items.empty() ? Value::undefined("the last of nothing") : items->items.back();
}

Value list(Interpreter& in, const Value& subject, const Arguments& given) {
  expect_no_arguments(given, "list");
  return in.list(in.iterate(subject)->items);
}

Value items(Interpreter& in, const Value& subject, const Arguments& given) {
  expect_no_arguments(given, "items");
  std::vector<Value> pairs;
  if (!subject.is_undefined()) {
    if (subject.dict() == nullptr) refuse("items: expected a dict, found a {}", subject.type_name());
    for (const auto& [key, value] : subject.dict()->items)
      pairs.push_back(in.list({key, value}, Sequence::tuple, subject.dict()->origin));
  }
  return in.list(std::move(pairs), Sequence::iterator);
}

Value join(Interpreter& in, const Value& subject, const Arguments& given) {
  const auto [separator, attribute] = bind<2>(given, "join", {"d", "attribute"});
  const Text between = separator == nullptr ? Text() : print(in, *separator);
  TextBuilder out(in.budget());
  bool is_first = true;
  for (const auto elements = in.iterate(subject); const Value& item : elements->items) {
    if (!std::exchange(is_first, false)) out.append(between);
    out.append(print(in, attribute == nullptr ? item : path_of(in, item, *attribute)));
  }
  return in.text(out.take());
}

Value reverse(Interpreter& in, const Value& subject, const Arguments& given) {
  expect_no_arguments(given, "reverse");
  if (subject.string() != nullptr) return in.slice(subject, Value(), Value(), Value::of(int64_t{-1}));
  std::vector<Value> values = in.iterate(subject)->items;
  std::reverse(values.begin(), values.end());
  return in.list(std::move(values), Sequence::iterator);
}

// What an item is compared by: an attribute of it or itself, without case unless case_sensitive.
Value sort_key(Interpreter& in, const Value& item, const Value* attribute, bool case_sensitive) {
  const Value key = attribute == nullptr || attribute->is_none() ? item : path_of(in, item, *attribute);
  return case_sensitive ? key : without_case(in, key);
}

using Keyed = std::pair<std::vector<Value>, Value>;  // the keys of an item, and the item

// What they take, from before they are made until they are sorted.
Holding hold_keyed(Interpreter& in, size_t items, size_t keys) {
  in.budget().require(items, 2 * (sizeof(Keyed) + keys * sizeof(Value)));
  return Holding(&in.budget(), items * 2 * (sizeof(Keyed) + keys * sizeof(Value)));
}

void sort_by_keys(Interpreter& in, std::vector<Keyed>& items, bool reverse) {
  const auto before = [&](const Keyed& a, const Keyed& b) {
    for (size_t i = 0; i < a.first.size(); ++i)
      if (!equal(a.first[i], b.first[i], in.budget())) return less(a.first[i], b.first[i], in.budget());
    return false;
  };
  if (reverse) {
    std::stable_sort(items.begin(), items.end(),
                     [&](const Keyed& a, const Keyed& b) { return before(b, a); });
  } else {
    std::stable_sort(items.begin(), items.end(), before);
  }
}

// An order needs values that compare with each other in any order they come: NaN does not.
void refuse_nan(const std::vector<Keyed>& items) {
  for (const auto& [keys, item] : items)
    for (const Value& key : keys)
      if (key.is<double>() && key.number() != key.number()) refuse("NaN has no place in an order");
}

Value sort(Interpreter& in, const Value& subject, const Arguments& given) {
  const auto [reverse, case_sensitive, attribute] =
      bind<3>(given, "sort", {"reverse", "case_sensitive", "attribute"});
  const bool with_case = flag_argument(case_sensitive, false);
  std::vector<Text> attributes;
  if (attribute != nullptr && attribute->string() != nullptr) {
    const std::string comma = ",";
    attributes = split(in.budget(), attribute->string()->text, &comma, -1, false);
  }
  const std::shared_ptr<List> elements = in.iterate(subject);
  const Holding held = hold_keyed(in, elements->items.size(), std::max<size_t>(attributes.size(), 1));
  std::vector<Keyed> keyed;
  for (const Value& item : elements->items) {
    Keyed entry{{}, item};
    for (const Text& name : attributes) {
      const Value path = in.text(name);
      entry.first.push_back(sort_key(in, item, &path, with_case));
    }
    if (attributes.empty()) entry.first.push_back(sort_key(in, item, attribute, with_case));
    keyed.push_back(std::move(entry));
  }
  refuse_nan(keyed);
  sort_by_keys(in, keyed, flag_argument(reverse, false));
  std::vector<Value> sorted;
  for (auto& [keys, item] : keyed) sorted.push_back(std::move(item));
  return in.list(std::move(sorted));
}

Value dictsort(Interpreter& in, const Value& subject, const Arguments& given) {
  const auto [case_sensitive, by, reverse] = bind<3>(given, "dictsort", {"case_sensitive", "by", "reverse"});
  const std::string part = by == nullptr ? "key" : string_argument(by, "dictsort").text.bytes();
  if (part != "key" && part != "value")
    refuse("dictsort: sorts by \"key\" or \"value\", not by \"{}\"", part);
  if (subject.is_undefined()) refuse("'{}' is undefined", subject.undefined_name());
  if (subject.dict() == nullptr) refuse("dictsort: expected a dict, found a {}", subject.type_name());
  const Holding held = hold_keyed(in, subject.dict()->items.size(), 1);
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : subject.dict()->items)
    keyed.push_back(
        {{sort_key(in, part == "key" ? key : value, nullptr, flag_argument(case_sensitive, false))},
         in.list({key, value}, Sequence::tuple)});
  refuse_nan(keyed);
  sort_by_keys(in, keyed, flag_argument(reverse, false));
  std::vector<Value> sorted;
  for (auto& [keys, item] : keyed) sorted.push_back(std::move(item));
  return in.list(std::move(sorted));
}

Value unique(Interpreter& in, const Value& subject, const Arguments& given) {
  const auto [case_sensitive, attribute] = bind<2>(given, "unique", {"case_sensitive", "attribute"});
  std::vector<Value> seen, kept;
  for (const auto elements = in.iterate(subject); const Value& item : elements->items) {
    Value key = sort_key(in, item, attribute, flag_argument(case_sensitive, false));
    check_key(key, in.budget());
    if (std::any_of(seen.begin(), seen.end(),
                    [&](const Value& other) { return equal(other, key, in.budget()); }))
      continue;
    seen.push_back(std::move(key));
    kept.push_back(item);
  }
  return in.list(std::move(kept), Sequence::iterator);
}

// The smallest, or with `largest` the largest; the first of equal ones.
Value extreme(Interpreter& in, const Value& subject, const Arguments& given, bool largest) {
  const auto [case_sensitive, attribute] = bind<2>(given, "min and max", {"case_sensitive", "attribute"});
  const Value* best = nullptr;
  Value best_key;
  const std::shared_ptr<List> values = in.iterate(subject);
  for (const Value& item : values->items) {
    Value key = sort_key(in, item, attribute, flag_argument(case_sensitive, false));
    if (best == nullptr || (largest ? less(best_key, key, in.budget()) : less(key, best_key, in.budget()))) {
      best = &item;
      best_key = std::move(key);
    }
  }
  return best == nullptr ? Value::undefined("the least of nothing") : *best;
}

Value min(Interpreter& in, const Value& subject, const Arguments& given) {
  return extreme(in, subject, given, false);
}
Value max(Interpreter& in, const Value& subject, const Arguments& given) {
  return extreme(in, subject, given, true);
}

Value sum(Interpreter& in, const Value& subject, const Arguments& given) {
  const auto [attribute, start] = bind<2>(given, "sum", {"attribute", "start"});
  Value total = start == nullptr ? Value::of(int64_t{0}) : *start;
  if (total.string() != nullptr) refuse("sum: texts are joined with join");
  for (const auto elements = in.iterate(subject); const Value& item : elements->items)
    total = in.binary("+", total,
                      attribute == nullptr || attribute->is_none() ? item : path_of(in, item, *attribute));
  return total;
}

Value batch(Interpreter& in, const Value& subject, const Arguments& given) {
  const auto [size, fill] = bind<2>(given, "batch", {"linecount", "fill_with"}, 1);
  const int64_t width = integer_argument(size, "batch", 1);
  if (width < 1) refuse("batch: expected a positive size, found {}", width);
  std::vector<Value> rows, row;
  const auto flush = [&] { rows.push_back(in.list(std::exchange(row, {}))); };
  for (const auto elements = in.iterate(subject); const Value& item : elements->items) {
    if (std::ssize(row) == width) flush();
    row.push_back(item);
  }
  if (!row.empty()) {
    in.budget().require(static_cast<size_t>(width) * (fill != nullptr ? sizeof(Value) : 0));
    while (fill != nullptr && !fill->is_none() && std::ssize(row) < width) row.push_back(*fill);
    flush();
  }
  return in.list(std::move(rows), Sequence::iterator);
}

Value groupby(Interpreter& in, const Value& subject, const Arguments& given) {
  const auto [attribute, otherwise, case_sensitive] =
      bind<3>(given, "groupby", {"attribute", "default", "case_sensitive"}, 1);
  const bool with_case = flag_argument(case_sensitive, false);
  const std::shared_ptr<List> elements = in.iterate(subject);
  const Holding held = hold_keyed(in, elements->items.size(), 1);
  std::vector<Keyed> keyed;
  for (const Value& item : elements->items) {
    Value key = path_of(in, item, *attribute);
    if (key.is_undefined() && otherwise != nullptr) key = *otherwise;
    Value compared = with_case ? key : without_case(in, key);
    keyed.push_back({{std::move(compared)}, in.list({std::move(key), item}, Sequence::tuple)});
  }
  refuse_nan(keyed);
  sort_by_keys(in, keyed, false);
  std::vector<Value> groups;
  for (size_t begin = 0, end; begin < keyed.size(); begin = end) {
    std::vector<Value> members;
    for (end = begin; end < keyed.size() && equal(keyed[begin].first[0], keyed[end].first[0], in.budget());
         ++end)
      members.push_back(keyed[end].second.list()->items[1]);
    groups.push_back(
        in.list({keyed[begin].second.list()->items[0], in.list(std::move(members))}, Sequence::tuple));
  }
  return in.list(std::move(groups));
}

constexpr FilterEntry kFilters[] = {
    {"batch", batch},     {"count", length}, {"dictsort", dictsort}, {"first", first},
    {"groupby", groupby}, {"items", items},  {"join", join},         {"last", last},
    {"length", length},   {"list", list},    {"max", max},           {"min", min},
    {"reverse", reverse}, {"sort", sort},    {"sum", sum},           {"unique", unique},
};

}  // namespace

const FilterEntry* find_list_filter(std::string_view name) {
  for (const FilterEntry& filter : kFilters)
    if (filter.name == name) return &filter;
  return nullptr;
}

}  // namespace ladder::jinja

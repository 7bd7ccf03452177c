#include "step2_model/chat/jinja/value.h"

#include <algorithm>

namespace ladder::jinja {
namespace {

// A value is walked by recursion when it is printed, compared and freed.
constexpr int kMaxNesting = 100;

int nested(int depth) {
  if (depth > kMaxNesting) refuse("more than {} lists and dicts within each other", kMaxNesting);
  return depth;
}

int depth_of(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return nested(depth + 1);
}

int depth_of(const Dict::Items& items) {
  int depth = 0;
  for (const auto& [key, value] : items) depth = std::max({depth, key.depth(), value.depth()});
  return nested(depth + 1);
}

bool equal_items(const std::vector<Value>& a, const std::vector<Value>& b, Budget& budget) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](const Value& x, const Value& y) { return equal(x, y, budget); });
}

}  // namespace

List::List(Sequence sequence, std::vector<Value> values, Budget* budget)
    : kind(sequence),
      items(std::move(values)),
      depth(depth_of(items)),
      holding(budget, sizeof(List) + items.capacity() * sizeof(Value)) {}

Dict::Dict(Items values, Budget* budget)
    : items(std::move(values)),
      depth(depth_of(items)),
      holding(budget, sizeof(Dict) + items.capacity() * sizeof(Items::value_type)) {}

const Value* Dict::find(const Value& key, Budget& budget) const {
  if (const String* text = key.string()) return find(text->text.bytes(), budget);
  budget.step(static_cast<int64_t>(items.size() / 8));
  for (const auto& [name, value] : items)
    if (equal(name, key, budget)) return &value;
  return nullptr;
}

const Value* Dict::find(std::string_view key, Budget& budget) const {
  budget.step(static_cast<int64_t>(items.size() / 8));
  for (const auto& [name, value] : items) {
    const String* text = name.string();
    if (text == nullptr || text->text.size() != key.size()) continue;
    budget.touch(key.size());
    if (text->text.bytes() == key) return &value;
  }
  return nullptr;
}

Value::Value(const Value&) = default;
Value::Value(Value&&) noexcept = default;
Value& Value::operator=(const Value&) = default;
Value& Value::operator=(Value&&) noexcept = default;
Value::~Value() = default;

Value Value::undefined(std::string_view name) {
  return Value(Undefined{std::make_shared<const std::string>(brief(name))});
}

std::string_view Value::type_name() const {
  switch (data_.index()) {
    case 0:
      return "Undefined";
    case 1:
      return "NoneType";
    case 2:
      return "bool";
    case 3:
      return "int";
    case 4:
      return "float";
    case 5:
      return "str";
    case 6: {
      constexpr std::string_view kNames[] = {"list",       "tuple", "dict_keys", "dict_values",
                                             "dict_items", "range", "iterator"};
      return kNames[static_cast<size_t>(list()->kind)];
    }
    case 7:
      return "dict";
    case 8:
      return "Namespace";
    case 9:
      return "function";
    default:
      return "loop";
  }
}

int Value::depth() const {
  if (const List* values = list()) return values->depth;
  if (const Dict* values = dict()) return values->depth;
  if (const Callable* function = callable()) return function->depth;
  if (const Loop* of = loop()) return of->items->depth + 1;
  return 0;
}

std::string_view brief(std::string_view name) {
  size_t end = std::min<size_t>(name.size(), 100);
  while (end < name.size() && end > 0 && (name[end] & 0xc0) == 0x80) --end;
  return name.substr(0, end);
}

void check_key(const Value& value, Budget& budget) {
  budget.step();
  const List* list = value.list();
  if (value.dict() != nullptr || (list != nullptr && list->kind == Sequence::list))
    refuse("a {} cannot be a key", value.type_name());
  if (list != nullptr && list->kind == Sequence::tuple)
    for (const Value& item : list->items) check_key(item, budget);
}

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_integer()) return value.integer() != 0;
  if (value.is<double>()) return value.number() != 0;
  if (const String* text = value.string()) return !text->text.empty();
  if (const List* list = value.list()) return list->kind == Sequence::iterator || !list->items.empty();
  if (const Dict* dict = value.dict()) return !dict->items.empty();
  return true;
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
    return a.number() == b.number();
  }
  if (const String* x = a.string(), *y = b.string(); x != nullptr && y != nullptr) {
    if (x->text.size() != y->text.size()) return false;
    budget.touch(x->text.size());
    return x->text.bytes() == y->text.bytes();
  }
  if (const List* x = a.list(), *y = b.list(); x != nullptr && y != nullptr) {
    if (x == y) return true;
    if (x->kind != y->kind || x->kind == Sequence::values || x->kind == Sequence::iterator) return false;
    return equal_items(x->items, y->items, budget);
  }
  if (const Dict* x = a.dict(), *y = b.dict(); x != nullptr && y != nullptr) {
    if (x == y) return true;
    if (x->items.size() != y->items.size()) return false;
    return std::all_of(x->items.begin(), x->items.end(), [&](const auto& item) {
      const Value* other = y->find(item.first, budget);
      return other != nullptr && equal(item.second, *other, budget);
    });
  }
  if (a.name_space() != nullptr) return a.name_space() == b.name_space();
  if (a.callable() != nullptr) return a.callable() == b.callable();
  return (a.is_undefined() && b.is_undefined()) || (a.is_none() && b.is_none());
}

bool less(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.integer() < b.integer();
    return a.number() < b.number();
  }
  // UTF-8 has the order of its code points.
  if (const String* x = a.string(), *y = b.string(); x != nullptr && y != nullptr) {
    budget.touch(std::min(x->text.size(), y->text.size()));
    return x->text.bytes() < y->text.bytes();
  }
  if (const List* x = a.list(), *y = b.list();
      x != nullptr && y != nullptr && x->kind == y->kind && x->kind <= Sequence::tuple) {
    for (size_t i = 0; i < x->items.size() && i < y->items.size(); ++i)
      if (!equal(x->items[i], y->items[i], budget)) return less(x->items[i], y->items[i], budget);
    return x->items.size() < y->items.size();
  }
  if (a.is_undefined()) refuse("'{}' is undefined", a.undefined_name());
  if (b.is_undefined()) refuse("'{}' is undefined", b.undefined_name());
  refuse("'{}' and '{}' have no order", a.type_name(), b.type_name());
}

}  // namespace ladder::jinja

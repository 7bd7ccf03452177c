// The parts of a value: attributes, items, slices, elements; and new values.
#include <algorithm>

#include "step2_model/chat/jinja/interpreter.h"
#include "step2_model/chat/jinja/methods.h"

namespace ladder::jinja {
namespace {

// What an attribute of a namespace takes.
size_t attribute_bytes(std::string_view name) {
  return sizeof(std::pair<std::string, Value>) + name.size();
}

// The attribute of this name, or nullptr.
template <class Space>
auto* find_attribute(Budget& budget, Space& space, std::string_view name) {
  budget.look_up(space.attributes.size());
  for (auto& [attribute, held] : space.attributes) {
    if (attribute.size() != name.size()) continue;
    budget.touch(name.size());
    if (attribute == name) return &held;
  }
  return static_cast<decltype(&space.attributes[0].second)>(nullptr);
}

// Python's rule for an index that may count from the end.
bool resolve_index(int64_t& index, size_t size) {
  if (index < 0) index += static_cast<int64_t>(size);
  return index >= 0 && index < static_cast<int64_t>(size);
}

Value loop_attribute(const Loop& loop, std::string_view name) {
  const auto size = static_cast<int64_t>(loop.items->items.size());
  const auto index = static_cast<int64_t>(loop.index);
  const auto neighbour = [&](int64_t at, std::string_view what) {
    return at >= 0 && at < size ? loop.items->items[static_cast<size_t>(at)] : Value::undefined(what);
  };
  if (name == "index") return Value::of(index + 1);
  if (name == "index0") return Value::of(index);
  if (name == "revindex") return Value::of(size - index);
  if (name == "revindex0") return Value::of(size - index - 1);
  if (name == "first") return Value::of(index == 0);
  if (name == "last") return Value::of(index == size - 1);
  if (name == "length") return Value::of(size);
  if (name == "depth") return Value::of(int64_t{loop.nesting} + 1);
  if (name == "depth0") return Value::of(int64_t{loop.nesting});
  if (name == "previtem") return neighbour(index - 1, "there is no previous item");
  if (name == "nextitem") return neighbour(index + 1, "there is no next item");
  return Value::undefined("loop." + std::string(name));
}

}  // namespace

Value Interpreter::text(Text content, bool markup) {
  budget_.touch(content.size());
  return Value(std::make_shared<const String>(std::move(content), &budget_, markup));
}

Value Interpreter::list(std::vector<Value> items, Sequence kind, Origin origin) {
  budget_.step(1 + static_cast<int64_t>(items.size() / 4));
  auto made = std::make_shared<List>(kind, std::move(items), &budget_);
  made->origin = origin;
  return Value(std::move(made));
}

Value Interpreter::dict(Dict::Items items, Origin origin) {
  budget_.step(1 + static_cast<int64_t>(items.size() / 4));
  auto made = std::make_shared<Dict>(std::move(items), &budget_);
  made->origin = origin;
  return Value(std::shared_ptr<const Dict>(std::move(made)));
}

Value Interpreter::function(std::string name, std::function<Value(Interpreter&, Arguments)> call, int depth) {
  if (depth > 100) refuse("more than 100 methods, lists and dicts within each other");
  constexpr size_t kCaptured = 64;  // what the function object holds besides
  return Value(std::shared_ptr<const Callable>(new Callable{
      std::move(name), std::move(call), depth, Holding(&budget_, sizeof(Callable) + kCaptured)}));
}

Value Interpreter::name_space(std::vector<std::pair<std::string, Value>> attributes) {
  budget_.hold(sizeof(Namespace));  // until the run ends: see namespaces_
  for (const auto& [name, value] : attributes) {
    budget_.touch(name.size());
    budget_.hold(attribute_bytes(name));
  }
  namespaces_.push_back(std::make_shared<Namespace>(Namespace{std::move(attributes)}));
  return Value(namespaces_.back());
}

Value Interpreter::attribute(const Value& value, std::string_view name) {
  if (value.is_undefined()) refuse("'{}' is undefined", value.undefined_name());
  if (value.loop() != nullptr && !has_method(value, name)) return loop_attribute(*value.loop(), name);
  if (const Namespace* space = value.name_space()) {
    if (const Value* held = find_attribute(budget_, *space, name)) return *held;
  } else if (has_method(value, name)) {
    return function(
        std::string(name),
        [value, name = std::string(name)](Interpreter& interpreter, const Arguments& arguments) {
          return call_method(interpreter, value, name, arguments);
        },
        value.depth() + 1);
  } else if (const Dict* dict = value.dict()) {
    if (const Value* found = dict->find(name, budget_)) return *found;
  } else if (const List* list = value.list(); list != nullptr && list->kind == Sequence::tuple &&
                                              list->items.size() == 2 &&
                                              (name == "grouper" || name == "list")) {
    return list->items[name == "list" ? 1 : 0];  // what groupby makes
  }
  return Value::undefined(fmt::format("{} object has no attribute {}", value.type_name(), brief(name)));
}

void Interpreter::set_attribute(Namespace& space, const std::string& name, Value value) {
  if (Value* held = find_attribute(budget_, space, name)) {
    *held = std::move(value);
    return;
  }
  budget_.hold(attribute_bytes(name));
  space.attributes.emplace_back(name, std::move(value));
}

Value Interpreter::item(const Value& value, const Value& key) {
  if (value.is_undefined()) refuse("'{}' is undefined", value.undefined_name());
  if (const Dict* dict = value.dict()) {
    if (const Value* found = dict->find(key, budget_)) return *found;
  } else if (key.is_integer()) {
    int64_t index = key.integer();
    if (const List* list = value.list();
        list != nullptr && (list->kind <= Sequence::tuple || list->kind == Sequence::range)) {
      if (resolve_index(index, list->items.size())) return list->items[static_cast<size_t>(index)];
    } else if (const String* string = value.string()) {
      if (resolve_index(index, string->length)) {
        const std::string& bytes = string->text.bytes();
        if (!string->is_ascii()) budget_.touch(bytes.size());
        const auto at = static_cast<size_t>(index);
        const size_t begin = string->is_ascii() ? at : code_point_offset(bytes, at);
        const size_t length =
            string->is_ascii() ? 1 : code_point_offset(std::string_view(bytes).substr(begin), 1);
        return text(string->text.slice(begin, begin + length));
      }
    }
  }
  if (const String* name = key.string()) {
    // As Jinja: what is no item may be an attribute.
    if (value.dict() == nullptr || has_method(value, name->text.bytes()))
      return attribute(value, name->text.bytes());
    return Value::undefined(name->text.bytes());
  }
  return Value::undefined(fmt::format("an item of a {}", value.type_name()));
}

Value Interpreter::slice(const Value& value, const Value& start, const Value& stop, const Value& step) {
  const List* list = value.list();
  const String* string = value.string();
  if (value.is_undefined()) refuse("'{}' is undefined", value.undefined_name());
  if (string == nullptr &&
      (list == nullptr || !(list->kind <= Sequence::tuple || list->kind == Sequence::range)))
    refuse("a {} has no slices", value.type_name());
  for (const Value* part : {&start, &stop, &step})
    if (!part->is_none() && !part->is_integer())
      refuse("expected integers in a slice, found a {}", part->type_name());
  const int64_t by = step.is_none() ? 1 : step.integer();
  if (by == 0) refuse("a slice cannot have the step 0");
  const auto size = static_cast<int64_t>(string != nullptr ? string->length : list->items.size());
  const auto clamped = [&](const Value& part, int64_t otherwise) {
    if (part.is_none()) return otherwise;
    int64_t index = part.integer();
    if (index < 0) index = std::max(index + size, by < 0 ? int64_t{-1} : int64_t{0});
    return std::min(index, by < 0 ? size - 1 : size);
  };
  const int64_t from = clamped(start, by < 0 ? size - 1 : 0), to = clamped(stop, by < 0 ? -1 : size);
  if (list != nullptr) {
    std::vector<Value> items;
    for (int64_t i = from; by > 0 ? i < to : i > to;) {
      items.push_back(list->items[static_cast<size_t>(i)]);
      if (by > 0 ? by >= to - i : by <= to - i) break;
      i += by;
    }
    return this->list(std::move(items), list->kind, list->origin);
  }
  const std::string& bytes = string->text.bytes();
  budget_.touch(bytes.size());
  const auto offset = [&](int64_t at) {
    const auto point = static_cast<size_t>(std::max<int64_t>(at, 0));
    return string->is_ascii() ? point : code_point_offset(bytes, point);
  };
  if (by == 1) return text(from < to ? string->text.slice(offset(from), offset(to)) : Text());
  std::vector<size_t> offsets;  // of every code point and of the end
  budget_.require(8 * string->length);
  for (size_t at = 0; at <= bytes.size(); ++at)
    if (at == bytes.size() || (bytes[at] & 0xc0) != 0x80) offsets.push_back(at);
  Text result;
  for (int64_t i = from; by > 0 ? i < to : i > to;) {
    budget_.step();
    const auto at = static_cast<size_t>(i);
    result.append(string->text.slice(offsets[at], offsets[at + 1]));
    if (by > 0 ? by >= to - i : by <= to - i) break;
    i += by;
  }
  return text(std::move(result));
}

std::shared_ptr<List> Interpreter::iterate(const Value& value) {
  std::vector<Value> items;
  if (List* elements = value.list()) {
    budget_.step(static_cast<int64_t>(elements->items.size() / 4));
    if (elements->kind != Sequence::iterator) return value.shared<List>();
    if (!std::exchange(elements->consumed, true)) items = std::move(elements->items);
  } else if (const Dict* dict = value.dict()) {
    for (const auto& [key, held] : dict->items) items.push_back(key);
  } else if (const String* string = value.string()) {
    const std::string& bytes = string->text.bytes();
    budget_.require(string->length * (sizeof(Value) + sizeof(String)));
    budget_.step(static_cast<int64_t>(string->length));
    for (size_t begin = 0; begin < bytes.size();) {
      const size_t length = code_point_offset(std::string_view(bytes).substr(begin, 4), 1);
      items.push_back(text(string->text.slice(begin, begin + length)));
      begin += length;
    }
  } else if (!value.is_undefined()) {
    refuse("a {} cannot be iterated over", value.type_name());
  }
  return list(std::move(items)).shared<List>();
}

Value Interpreter::call(const Value& callee, Arguments arguments) {
  if (callee.is_undefined()) refuse("'{}' is undefined", callee.undefined_name());
  if (callee.callable() == nullptr) refuse("a {} cannot be called", callee.type_name());
  const Level level(budget_);
  return callee.callable()->call(*this, std::move(arguments));
}

}  // namespace ladder::jinja

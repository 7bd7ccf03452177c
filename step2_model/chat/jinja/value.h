#pragma once
// The values that a template works on: Python's, as far as Jinja's templates for chats use them.
//
// Lists, dicts and texts are shared and never change (transformers' sandbox forbids it as well), so copying a value is
// cheap. What changes are namespaces and the position of an iterator.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "step2_model/chat/jinja/budget.h"
#include "step2_model/chat/jinja/text.h"

namespace ladder::jinja {

class Value;
class Interpreter;  // interpreter.h

struct Undefined {
  std::shared_ptr<const std::string> name;  // what was not found, for messages
};
struct None {};

struct String {
  String(Text content, Budget* budget, bool is_markup = false)
      : text(std::move(content)),
        length(count_code_points(text.bytes())),
        markup(is_markup),
        holding(budget, sizeof(String) + text.bytes_held()) {}
  bool is_ascii() const { return length == text.size(); }

  Text text;
  size_t length;  // in code points
  bool markup;    // came out of safe or escape: + escapes what is added to it
  Holding holding;
};

// How Python calls a sequence: it decides about printing, length and order comparisons.
enum class Sequence : uint8_t { list, tuple, keys, values, items, range, iterator };

struct List {
  List(Sequence kind, std::vector<Value> items, Budget* budget);
  Sequence kind;
  std::vector<Value> items;
  Origin origin = Origin::trusted;  // of the brackets and commas when it is printed
  bool consumed = false;            // an iterator that has been used gives nothing more
  int depth;                        // containers within each other
  Holding holding;
};

struct Dict {
  using Items = std::vector<std::pair<Value, Value>>;
  Dict(Items items, Budget* budget);
  const Value* find(const Value& key, Budget& budget) const;
  const Value* find(std::string_view key, Budget& budget) const;

  Items items;  // in the order of insertion, keys distinct
  Origin origin = Origin::trusted;
  int depth;
  Holding holding;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

struct Callable {
  std::string name;
  std::function<Value(Interpreter&, Arguments)> call;
  int depth = 1;
  Holding holding;
};

// What `loop` is within a for.
struct Loop {
  std::shared_ptr<const List> items;
  size_t index = 0;
  int nesting = 0;                            // loops around it
  std::optional<std::vector<Value>> changed;  // what loop.changed saw last
};

class Value {
 public:
  using Data = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const String>,
                            std::shared_ptr<List>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
                            std::shared_ptr<const Callable>, std::shared_ptr<Loop>>;

  Value() : data_(None{}) {}
  // In value.cpp: what a variant does here takes the compiler a second in every file.
  Value(const Value&);
  Value(Value&&) noexcept;
  Value& operator=(const Value&);
  Value& operator=(Value&&) noexcept;
  ~Value();
  template <class T>
  requires std::constructible_from<Data, T&&> &&
      (!std::same_as<std::remove_cvref_t<T>, Value>)explicit Value(T&& data)
      : data_(std::forward<T>(data)) {}

  static Value undefined(std::string_view name);  // of which only the beginning is kept
  static Value of(bool value) { return Value(Data(value)); }
  static Value of(int64_t value) { return Value(Data(value)); }
  static Value of(double value) { return Value(Data(value)); }

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_integer() const { return is<int64_t>() || is<bool>(); }  // True is 1 in Python
  bool is_number() const { return is_integer() || is<double>(); }

  // nullptr where it is something else.
  const String* string() const { return pointer<const String>(); }
  List* list() const { return pointer<List>(); }
  const Dict* dict() const { return pointer<const Dict>(); }
  Namespace* name_space() const { return pointer<Namespace>(); }
  const Callable* callable() const { return pointer<const Callable>(); }
  Loop* loop() const { return pointer<Loop>(); }

  int64_t integer() const { return is<bool>() ? std::get<bool>(data_) : std::get<int64_t>(data_); }
  double number() const { return is<double>() ? std::get<double>(data_) : static_cast<double>(integer()); }
  bool boolean() const { return std::get<bool>(data_); }
  const std::string& undefined_name() const { return *std::get<Undefined>(data_).name; }
  template <class T>
  const std::shared_ptr<T>& shared() const {
    return std::get<std::shared_ptr<T>>(data_);
  }

  // As Python calls the type: "str", "int", "NoneType", ...
  std::string_view type_name() const;
  // Containers within each other, this one included; 0 for anything else.
  int depth() const;

 private:
  template <class T>
  T* pointer() const {
    const auto* shared = std::get_if<std::shared_ptr<T>>(&data_);
    return shared == nullptr ? nullptr : shared->get();
  }

  Data data_;
};

// A name as messages show it: its first 100 bytes at most.
std::string_view brief(std::string_view name);
// Refusal for what Python takes as no key of a dict: lists, dicts, and tuples that hold one.
void check_key(const Value& value, Budget& budget);
// Python's bool(value). An undefined value is false.
bool is_true(const Value& value);
// Python's ==: True equals 1, texts are equal whatever their marks, undefined equals undefined only.
bool equal(const Value& a, const Value& b, Budget& budget);
// Python's <: numbers, texts by code points, lists and tuples by their elements; anything else is refused.
bool less(const Value& a, const Value& b, Budget& budget);

}  // namespace ladder::jinja

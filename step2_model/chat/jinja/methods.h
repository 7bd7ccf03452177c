#pragma once
// value.name(arguments) for the methods of Python's str, dict, list and tuple, and of Jinja's loop.
#include <string_view>

#include "step2_model/chat/jinja/value.h"

namespace ladder::jinja {

// Whether the type has a method of this name, those that would change the value included: they are refused when they
// are called.
bool has_method(const Value& value, std::string_view name);
// Refusal: arguments that the method does not take.
Value call_method(Interpreter& interpreter, const Value& value, std::string_view name,
                  const Arguments& arguments);

// The tables that these look in.
using Method = Value (*)(Interpreter&, const Value& self, const Arguments&);

struct MethodEntry {
  std::string_view name;
  Method call;
};

// nullptr where there is none of this name.
template <size_t N>
Method method_named(const MethodEntry (&table)[N], std::string_view name) {
  for (const MethodEntry& method : table)
    if (method.name == name) return method.call;
  return nullptr;
}

Method find_text_method(std::string_view name);  // of str (methods_text.cpp)

}  // namespace ladder::jinja

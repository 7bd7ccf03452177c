#pragma once
// Jinja's tests: {{ subject is name(arguments) }}.
#include <string_view>

#include "step2_model/chat/jinja/value.h"

namespace ladder::jinja {

struct TestEntry {
  std::string_view name;
  bool (*holds)(Interpreter&, const Value& subject, const Arguments&);
};

// nullptr where there is none of this name.
const TestEntry* find_test(std::string_view name);

}  // namespace ladder::jinja

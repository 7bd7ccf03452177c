#pragma once
// The one exception type of the project.
//
// A user's mistake (a missing file, a malformed checkpoint, a bad flag, a request that can never fit) is
// thrown as ladder::Error with one line that names the thing and says what was expected. main() prints that
// line and exits with code 2. Anything else that escapes is a defect of ours.
#include <fmt/format.h>

#include <utility>

#include "step1_layers/core/error_type.h"
#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

// Throws Error with the given message unless the condition holds. The message is only formatted on failure.
#define LADDER_CHECK(condition, ...) \
  do {                               \
    if (!(condition)) [[unlikely]]   \
      ::ladder::fail(__VA_ARGS__);   \
  } while (0)

}  // namespace ladder

#pragma once
// What an error says.
#include <concepts>
#include <string>

#include "step1_layers/core/error.h"

namespace ladder::testing {

// "no error": the work threw none.
template <std::invocable Work>
std::string error_of(Work work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace ladder::testing

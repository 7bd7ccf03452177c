#pragma once
// The one exception type of the project, without the formatting of its messages (error.h): light enough for
// files that are compiled once per instruction set.
#include <stdexcept>
#include <string>

namespace ladder {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

}  // namespace ladder

#pragma once
// What the user can mend: one line that names the thing. main() prints it and exits with code 2.
#include <stdexcept>
#include <string>

namespace lab {

class LabError : public std::runtime_error {
 public:
  explicit LabError(const std::string& message) : std::runtime_error(message) {}
};

}  // namespace lab

#pragma once
#include <stdexcept>

namespace ladder {

// A process that does a part of this one's work has ended or failed: what() is one line that names it and says how. No
// mistake of the user's (Error), and nothing that went wrong in here.
class ProcessFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace ladder

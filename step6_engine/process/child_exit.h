#pragma once
// How a process ended, for whoever has to say why something stopped.
#include <optional>
#include <string>

namespace ladder {

struct ChildExit {
  std::optional<int> code;    // it returned, or called exit()
  std::optional<int> signal;  // or this ended it

  bool ok() const { return code == 0; }
  // "ended with exit code 3", "was ended by SIGKILL (as a system does that runs out of memory)".
  std::string in_words() const;
};

}  // namespace ladder

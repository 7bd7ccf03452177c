#pragma once
// How a process ended, for whoever has to say why something stopped.
#include <chrono>
#include <optional>
#include <string>

namespace ladder {

struct ChildExit {
  std::optional<int> code;    // it returned, or called exit()
  std::optional<int> signal;  // or this ended it
  // Its parent did, because it was stopped for so long (ChildOptions::stop_patience).
  std::optional<std::chrono::milliseconds> stopped_for;

  bool ok() const { return code == 0; }
  // "ended with exit code 3", "was ended by SIGKILL (as a system does that runs out of memory)".
  std::string in_words() const;
};

}  // namespace ladder

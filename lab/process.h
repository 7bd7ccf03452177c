#pragma once
// Other programs: git, cmake, ninja, the test binaries.
#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace lab {

struct Outcome {
  int exit_code = 0;  // of the program; 127 if it could not be started
  int signal = 0;     // that ended it, or 0
  bool timed_out = false;
  std::string output;  // stdout and stderr together, unless they were passed through

  bool ok() const { return exit_code == 0 && signal == 0 && !timed_out; }
};

// Runs a program to its end and captures what it prints; `extra` is added to the environment. One that takes longer
// than `limit` is ended with everything it started.
Outcome run(const std::vector<std::string>& command, std::chrono::seconds limit = std::chrono::hours(2),
            const std::map<std::string, std::string>& extra = {});

// The same with the terminal's own stdout and stderr.
Outcome run_visibly(const std::vector<std::string>& command,
                    const std::map<std::string, std::string>& extra = {});

}  // namespace lab

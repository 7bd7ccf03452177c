#include "lab/sanitizer.h"

#include <sstream>

namespace lab {
namespace {

// What the tool says of the kernel, not of itself, of an end without findings, or of the program's exit code.
bool is_finding(const std::string& line) {
  return !line.empty() && !line.starts_with("COMPUTE-SANITIZER") &&
         !line.starts_with("Target application returned an error") &&
         line.find("SUMMARY: 0 ") == std::string::npos;
}

}  // namespace

std::string found_by_sanitizer(const std::filesystem::path& sanitizer, const std::string& tool,
                               const std::vector<std::string>& program,
                               const std::function<Outcome(const std::vector<std::string>&)>& start) {
  std::vector<std::string> command = {sanitizer.string(), "--tool", tool, "--error-exitcode", "9"};
  // Else a read behind a small tensor falls into the next one.
  if (tool == "memcheck") command.insert(command.end(), {"--padding", "65536"});
  command.insert(command.end(), program.begin(), program.end());
  const Outcome ran = start(command);
  if (ran.ok()) return "";
  const std::string mark = "========= ";
  std::istringstream lines(ran.output);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(mark) && is_finding(line.substr(mark.size())))
      return tool + ": " + line.substr(mark.size());
  return tool + ": the program did not come to a clean end";
}

}  // namespace lab

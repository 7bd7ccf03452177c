#include "tests/cli/run_binary.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "tests/support/temporary_folder.h"

namespace ladder::testing {

std::string ladder_binary() {
  const std::string path = LADDER_BINARY;
  if (access(path.c_str(), X_OK) != 0)
    throw std::runtime_error("the program to test is missing: there is no executable " + path);
  return path;
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

BinaryResult run_binary(const std::vector<std::string>& arguments, const std::string& input,
                        const std::string& environment, const std::string& launcher) {
  TemporaryFolder folder;
  write_file(folder / "in", input);
  std::string command = (environment.empty() ? "" : "env " + shell_quoted(environment) + " ") +
                        (launcher.empty() ? "" : launcher + " ") + shell_quoted(ladder_binary());
  for (const std::string& argument : arguments) command += " " + shell_quoted(argument);
  command += " <" + shell_quoted((folder / "in").string()) + " >" + shell_quoted((folder / "out").string()) +
             " 2>" + shell_quoted((folder / "err").string());
  const int status = std::system(command.c_str());
  BinaryResult result;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = read_file(folder / "out");
  result.err = read_file(folder / "err");
  return result;
}

}  // namespace ladder::testing

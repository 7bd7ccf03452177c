#pragma once
// Runs the program as a user would, and says what it printed.
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace ladder::testing {

struct BinaryResult {
  int exit_code = -1;  // 128 + n: ended by signal n
  std::string out, err;
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// `environment`: "NAME=value" for this run.
inline BinaryResult run_binary(const std::vector<std::string>& arguments, const std::string& input = {},
                               const std::string& environment = {}) {
  TemporaryFolder folder;
  write_file(folder / "in", input);
  std::string command =
      (environment.empty() ? "" : "env " + shell_quoted(environment) + " ") + shell_quoted(LADDER_BINARY);
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

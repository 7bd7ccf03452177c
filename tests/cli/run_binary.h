#pragma once
// Runs the program as a user would, and says what it printed.
#include <filesystem>
#include <string>
#include <vector>

namespace ladder::testing {

struct BinaryResult {
  int exit_code = -1;  // 128 + n: ended by signal n
  std::string out, err;
};

// The program that is tested. Throws, so that the test fails with the reason, where it has not been built.
std::string ladder_binary();

std::string read_file(const std::filesystem::path& path);
std::string shell_quoted(const std::string& text);

// `environment`: "NAME=value" for this run. `launcher`: words before the program's, as the shell reads them.
BinaryResult run_binary(const std::vector<std::string>& arguments, const std::string& input = {},
                        const std::string& environment = {}, const std::string& launcher = {});

}  // namespace ladder::testing

// GoogleTest's main. With --graded as first argument (`lab grade`) it also says on file descriptor 3 how the tests
// ended: a word that stands on standard input, and that was not read before the last test was over, then GoogleTest's
// own report, then the word again. So a process that a test's subject left early, or a report that it wrote, is none.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>

int main(int argc, char** argv) {
  const bool graded = argc > 1 && std::string_view(argv[1]) == "--graded";
  ::testing::InitGoogleTest(&argc, argv);
  const int code = RUN_ALL_TESTS();
  if (!graded) return code;
  std::string word;
  std::getline(std::cin, word);
  const std::string output = GTEST_FLAG_GET(output);  // json:PATH
  std::ifstream report(output.substr(output.find(':') + 1), std::ios::binary);
  const std::string text =
      word + "\n" + std::string(std::istreambuf_iterator<char>(report), {}) + "\n" + word + "\n";
  for (size_t at = 0; at < text.size();) {
    const ssize_t count = ::write(3, text.data() + at, text.size() - at);
    if (count <= 0) return 1;
    at += static_cast<size_t>(count);
  }
  return code;
}

// Tables of FIELD_BUGS.md name tests by their names: they are there.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/support/source_folder.h"

namespace ladder {
namespace {

std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(FieldBugs, EachTestThatIsNamedIsThere) {
  const std::filesystem::path tests = testing::source_folder() / "tests";
  std::set<std::string> there;
  std::vector<std::filesystem::path> tables;
  const std::regex macro(R"(TEST(?:_P|_F)?\(\s*(\w+),\s*(\w+)\s*[,)])");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(tests)) {
    if (entry.path().filename() == "FIELD_BUGS.md") tables.push_back(entry.path());
    if (entry.path().extension() != ".cpp") continue;
    const std::string text = text_of(entry.path());
    for (std::sregex_iterator it(text.begin(), text.end(), macro), end; it != end; ++it)
      there.insert((*it)[1].str() + "." + (*it)[2].str());
  }
  EXPECT_EQ(tables.size(), 2u);
  const std::regex name(R"(`(\w+\.\w+)`)");
  for (const std::filesystem::path& file : tables) {
    const std::string table = text_of(file);
    int count = 0;
    for (std::sregex_iterator it(table.begin(), table.end(), name), end; it != end; ++it, ++count)
      EXPECT_EQ(there.count((*it)[1].str()), 1u)
          << file << " names " << (*it)[1].str() << ": there is no such test";
    EXPECT_GT(count, 12) << file;
  }
}

}  // namespace
}  // namespace ladder

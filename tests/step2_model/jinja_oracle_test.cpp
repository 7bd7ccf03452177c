// Tasks 2.6.*: what jinja2 renders (tools/goldens/jinja_oracle.py), case by case.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "step1_layers/core/error.h"
#include "step2_model/json.h"
#include "tests/step2_model/jinja.h"
#include "tests/support/source_folder.h"

namespace ladder {
namespace {

using testing::render_jinja;

struct Results {
  std::string oracle;
  std::vector<OrderedJson> files;  // what came out for each template that has a name: see `published`
  int compared = 0, differ = 0;
};

std::string rendered(const std::string& source, const OrderedJson& variables) {
  try {
    return render_jinja(source, variables);
  } catch (const Error& error) {
    return std::string("refused: ") + error.what();
  }
}

// Every case of a file; at most ten that differ are shown.
Results compare_with_jinja2(const std::filesystem::path& path) {
  Results results;
  std::istringstream lines(read_text_file(path, int64_t{1} << 30));
  std::string line, source;
  std::getline(lines, line);
  results.oracle = parse_json(line, "header")["oracle"];
  while (std::getline(lines, line)) {
    const OrderedJson golden = parse_ordered_json(line, "case", 200);
    if (golden.contains("template")) source = golden["template"];
    if (golden.contains("of"))
      results.files.push_back({{"name", golden["of"]},
                               {"sha256", golden["sha256"]},
                               {"cases", 0},
                               {"refused", 0},
                               {"differ", 0}});
    const bool is_refused = golden.contains("error");
    const std::string expected =
        is_refused ? "refused: " + golden["error"].get<std::string>() : golden["text"].get<std::string>();
    const std::string seen = rendered(source, golden["variables"]);
    const bool differs = is_refused ? !seen.starts_with("refused: ") : seen != expected;
    ++results.compared;
    if (!results.files.empty()) {
      OrderedJson& file = results.files.back();
      const auto count = [&](const char* what, bool one) {
        file[what] = file[what].get<int>() + (one ? 1 : 0);
      };
      count("cases", true);
      count("refused", is_refused);
      count("differ", differs);
    }
    if (differs && ++results.differ <= 3000)
      ADD_FAILURE() << golden["name"] << "\ntemplate:\n"
                    << source.substr(0, 1500) << "\nvariables: " << golden["variables"].dump().substr(0, 600)
                    << "\nours: " << Json(seen.substr(0, 3000)).dump()
                    << "\njinja2: " << Json(expected.substr(0, 3000)).dump();
  }
  EXPECT_EQ(results.differ, 0) << "of " << results.compared;
  std::cout << results.compared << " cases, " << results.differ << " differ\n";
  return results;
}

const std::filesystem::path kGoldens = testing::source_folder() / "tests/goldens/jinja";

TEST(Task2_6_Statements, SmallTemplatesRenderAsInJinja2) {
  EXPECT_GE(compare_with_jinja2(kGoldens / "small.jsonl").compared, 60);
}

TEST(Task2_6_Statements, RandomTemplatesRenderAsInJinja2) {
  EXPECT_GE(compare_with_jinja2(kGoldens / "random.jsonl").compared, 300);
}

// Any file of cases: real templates, which are not part of this repository, and more random ones.
TEST(JinjaOracle, CasesOfTheFileThatIsNamed) {
  const char* path = std::getenv("LADDER_JINJA_CASES");
  if (path == nullptr) GTEST_SKIP() << "LADDER_JINJA_CASES names no file of tools/goldens/jinja_oracle.py";
  const Results results = compare_with_jinja2(path);
  EXPECT_GE(results.compared, 1);
  if (const char* out = std::getenv("LADDER_JINJA_RESULTS"); out != nullptr) {
    std::ofstream file(out);
    file << OrderedJson{{"oracle", results.oracle}} << "\n";
    for (const OrderedJson& result : results.files) file << result << "\n";
    EXPECT_TRUE(file.flush().good()) << out;
  }
}

}  // namespace
}  // namespace ladder

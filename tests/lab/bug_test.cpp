// Bug labs on a small checkout: what a student is told of a test, from the empty file to the one that finds the defect.
#include "lab/bug.h"

#include <gmock/gmock.h>
#include <signal.h>

#include "lab/bug_grade.h"
#include "lab/bug_judge.h"
#include "lab/files.h"
#include "lab/test_run.h"
#include "tests/lab/small_tree.h"

namespace lab {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kBugs = R"([
  {"id": "3.2#1", "task": "3.2", "title": "one block is missing", "report": "Blocks get lost.", "file": "step3_small/pool.cpp",
   "find": "free - 1", "replace": "free - 2", "source": "here", "hours": 1, "target": "test_step3",
   "includes": ["step3_small/small.h"]}
])";

constexpr const char* kTestPath = "tests/bugs/3_2_1_test.cpp";

constexpr const char* kBuild = R"(cmake_minimum_required(VERSION 3.22)
project(small LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
include(cmake/spliced.cmake)
find_package(GTest REQUIRED)
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/step3_small/*.cpp)
ladder_splice(sources)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
add_library(ladder_step3 STATIC ${sources})
target_include_directories(ladder_step3 PUBLIC ${CMAKE_SOURCE_DIR})
add_library(ladder_test_support INTERFACE)
target_link_libraries(ladder_test_support INTERFACE GTest::gtest)
function(ladder_test_binary name library)
  add_executable(${name} ${ARGN} tests/support/test_main.cpp)
  target_link_libraries(${name} PRIVATE ${library} GTest::gtest)
endfunction()
include(cmake/bugs.cmake)
)";

std::string test_that(const std::string& body) {
  return "#include <gtest/gtest.h>\n#include <vector>\n#include \"step3_small/small.h\"\nTEST(Bug, Found) {\n" +
         body + "\n}\n";
}

class BugLab : public ::testing::Test {
 protected:
  BugLab() { small_.write("lab/bugs.json", kBugs); }

  void make_buildable() {
    small_.write("CMakeLists.txt", kBuild);
    for (const char* file : {"cmake/spliced.cmake", "cmake/bugs.cmake", "tests/support/test_main.cpp"})
      small_.write(file, read_file(std::filesystem::path(LAB_SOURCE_DIR) / file));
  }
  Outcome judged(const std::string& body) {
    small_.write(kTestPath, test_that(body));
    return small_.lab({"test", "3.2#1"});
  }

  SmallTree small_;
};

TEST_F(BugLab, GivesTheSymptomAndAFileThatIsNeverOverwritten) {
  EXPECT_THAT(small_.lab({"bug", "--list"}).output,
              HasSubstr("3.2#1           -             1 hour: one block is missing"));
  const Outcome first = small_.lab({"bug", "3.2#1"});
  EXPECT_EQ(first.exit_code, 0);
  for (const char* said : {"Blocks get lost.", kTestPath, "./ladder lab test 3.2#1"})
    EXPECT_THAT(first.output, HasSubstr(said));
  EXPECT_THAT(first.output, Not(HasSubstr("free - 2")));
  EXPECT_THAT(small_.read(kTestPath), HasSubstr("#include \"step3_small/small.h\""));
  EXPECT_THAT(small_.read(kPool), HasSubstr("free - 1")) << "the checkout is as it was";
  EXPECT_THAT(small_.lab({"test", "3.2#1"}).output, HasSubstr("still the empty test"));
  small_.write(kTestPath, "mine\n");
  EXPECT_THAT(small_.lab({"bug", "3.2#1"}).output, HasSubstr("nothing was changed"));
  EXPECT_EQ(small_.read(kTestPath), "mine\n");
  const Outcome unknown = small_.lab({"bug", "3.2#7"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.output, HasSubstr("no bug '3.2#7': there are 3.2#1"));
}

TEST_F(BugLab, TheDefectIsThatOfTheReferenceWhateverStandsInTheFile) {
  small_.lab({"start", "3.2"});  // a stub: `find` is not in the file any more
  EXPECT_EQ(small_.lab({"bug", "3.2#1"}).exit_code, 0);
  EXPECT_THAT(small_.read(".lab/bugs/3_2_1/ladder_step3/defect/step3_small/pool.cpp"),
              HasSubstr("return free - 2;"));
  EXPECT_THAT(small_.read(".lab/bugs/3_2_1/ladder_step3/reference/step3_small/pool.cpp"),
              HasSubstr("return free - 1;"));
  EXPECT_THAT(small_.read(kPool), HasSubstr("TaskNotImplemented"));
  EXPECT_EQ(small_.lab({"status"}).exit_code, 0);
}

TEST_F(BugLab, InAReleaseTheyComeWithUnlock) {
  std::filesystem::remove(small_.root() / "lab" / "bugs.json");
  EXPECT_THAT(small_.lab({"bug", "3.2#1"}).output, HasSubstr("./ladder lab unlock"));
  small_.write(".lab/bugs.json", kBugs);
  EXPECT_EQ(small_.lab({"bug", "3.2#1"}).exit_code, 0);
}

TEST_F(BugLab, ATestIncludesHeadersOfTheProjectAndContainersOnly) {
  EXPECT_EQ(refused_bug_test(test_that("")), "");
  EXPECT_EQ(refused_bug_test("#include \"tests/step5_scheduler/harness.h\"  // a harness\n"), "");
  for (const char* line :
       {"#include \"step3_small/pool.cpp\"", "#include \"../.lab/bugs/3_2_1/pool.h\"", "#include <fstream>",
        "#include <unistd.h>", "#define private public", "#include </etc/passwd>",
        "#include \"tests/../lab/files.h\"", "#pragma GCC optimize(0)", "#include KNOWN", "#embed <data>"})
    EXPECT_THAT(refused_bug_test("int a;\n" + std::string(line) + "\n"), HasSubstr("line 2")) << line;
}

TEST_F(BugLab, TheFileChangedWhereTheDefectBelongs) {
  small_.edit(kPool, "// >>> task 3.2: a function\n", "");
  small_.edit(kPool, "// <<< task 3.2\n", "");
  small_.edit(kPool, "free - 1", "free - 3");
  const Outcome refused = small_.lab({"bug", "3.2#1"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output, HasSubstr("git diff step3_small/pool.cpp"));
}

// Built for real, once, with the student's own text half written.
TEST_F(BugLab, FoundOnlyByACheckThatFailsOnTheDefectAndHoldsOnTheReference) {
  make_buildable();
  small_.lab({"start", "3.2"});
  small_.lab({"bug", "3.2#1"});
  const Outcome found = judged("  EXPECT_EQ(ladder::allocate(3), 1);");
  EXPECT_EQ(found.exit_code, 0) << found.output;
  EXPECT_THAT(found.output, HasSubstr("seen      0   (ladder::allocate(3))"));
  EXPECT_THAT(found.output, HasSubstr("found: 3.2#1"));
  EXPECT_EQ(small_.spliced(kPool), "") << "the student's stub is what the other commands build";

  const auto because = [&](const std::string& body, const std::string& why) {
    const Outcome judged_now = judged(body);
    EXPECT_EQ(judged_now.exit_code, 1);
    EXPECT_THAT(judged_now.output, HasSubstr(why));
  };
  because("  EXPECT_TRUE(true);", "it passes on the defect");
  because("  volatile int* nowhere = nullptr; if (ladder::take(3) != 2) *nowhere = 1;",
          "on the defect it crashed");
  const Outcome refused = judged("  if (ladder::take(3) != 2) exit(0);");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output, HasSubstr("`exit`"));
}

TEST_F(BugLab, AHandInsTestIsGradedAwayFromTheStudentsTree) {
  make_buildable();
  const Tree tree = small_.tree();
  const std::filesystem::path folder = build_folder(small_.root(), false);
  const BugGrading grading{tree, read_bugs(small_.root()), folder,
                           [&](const std::string& target) { return build(small_.root(), false, target); },
                           Sandbox::none};
  const auto part_of = [&](const std::string& body) {
    return bug_parts(grading, {{"3.2#1", test_that(body)}}, 3).at(0);
  };
  const Part found = part_of("  EXPECT_EQ(ladder::take(3), 2);");
  EXPECT_EQ(found.text, "");
  EXPECT_EQ(found.points, 3);
  EXPECT_EQ(found.task, "3.2");
  // A report of its own, and the end before GoogleTest has said anything: neither is an answer.
  const Part forged = part_of("  if (ladder::take(3) != 2) __builtin__exit(1);");
  EXPECT_EQ(forged.points, 0);
  const Part files = part_of("  FILE* file = fopen(\"/etc/passwd\", \"r\"); EXPECT_EQ(file, nullptr);");
  EXPECT_EQ(files.points, 0);
  EXPECT_THAT(files.text, HasSubstr("files may not stand"));
  EXPECT_EQ(part_of("  EXPECT_TRUE(true);").points, 0);
  EXPECT_EQ(bug_parts(grading, {{"3.2#1", bug_template(grading.bugs[0])}}, 3).at(0).points, 0);
  EXPECT_EQ(bug_parts(grading, {{"9.9#1", "x"}}, 3).at(0).text, "no such bug");
  EXPECT_FALSE(std::filesystem::exists(small_.root() / kTestPath));
}

TEST_F(BugLab, TheHandInHoldsTheTest) {
  const std::string out = (small_.root() / "out.json").string();
  EXPECT_THAT(small_.lab({"hand-in", "3.2#1", "--out", out}).output, HasSubstr("is not there"));
  small_.lab({"bug", "3.2#1"});
  EXPECT_THAT(small_.lab({"hand-in", "3.2#1", "--out", out}).output, HasSubstr("still the empty test"));
  small_.write(kTestPath, test_that("  EXPECT_EQ(ladder::take(3), 2);"));
  const Outcome handed_in = small_.lab({"hand-in", "3.2#1", "--out", out});
  EXPECT_EQ(handed_in.exit_code, 0);
  EXPECT_THAT(handed_in.output, HasSubstr("1 test of a bug of release"));
  EXPECT_THAT(small_.read("out.json"), HasSubstr("\"bug\": \"3.2#1\""));
  EXPECT_EQ(small_.lab({"hand-in", "--check", out}).exit_code, 0);
  small_.write("out.json",
               small_.read("out.json").replace(small_.read("out.json").find("take(3)"), 7, "take(4)"));
  EXPECT_THAT(small_.lab({"hand-in", "--check", out}).output, HasSubstr("is not the one that was handed in"));
}

constexpr const char* kReport = R"({"testsuites": [{"name": "Bug", "testsuite": [
  {"name": "Skips", "result": "SKIPPED"}, {"name": "Passes", "result": "COMPLETED"},
  {"name": "Fails", "result": "COMPLETED", "failures": [{"failure": "a.cpp:3\nFailure"}]}]}]})";

TEST(BugJudge, WhatAnEndedRunSays) {
  Outcome ended;
  ended.exit_code = 1;
  const BugRun whole = read_bug_run(ended, kReport);
  EXPECT_EQ(whole.broke, "");
  EXPECT_EQ(whole.passed, (std::set<std::string>{"Bug.Passes"}));
  EXPECT_EQ(whole.failed, (std::set<std::string>{"Bug.Fails"}));
  EXPECT_EQ(whole.message, "a.cpp:3\nFailure");

  std::string thrown = kReport;
  thrown.replace(thrown.find("a.cpp:3"), 7,
                 "unknown file\\nC++ exception with description \\\"no\\\" thrown");
  EXPECT_THAT(read_bug_run(ended, thrown).broke, HasSubstr("let an exception out of Bug.Fails"));
  EXPECT_THAT(read_bug_run(ended, "").broke, HasSubstr("ended before its tests did, with code 1"));
  EXPECT_THAT(read_bug_run(ended, "{\"testsuites\": [").broke, HasSubstr("while it wrote its report"));
  ended.exit_code = 0;
  EXPECT_THAT(read_bug_run(ended, kReport).broke, HasSubstr("ended before its tests did, with code 0"));
  ended.signal = SIGSEGV;
  EXPECT_THAT(read_bug_run(ended, kReport).broke, HasSubstr("crashed"));
  ended.timed_out = true;
  EXPECT_THAT(read_bug_run(ended, kReport).broke, HasSubstr("did not end in time"));
}

// The judge alone, with runs as they might come.
TEST(BugJudge, ATestThatDoesNotDoTheSameEachTimeFindsNothing) {
  const ladder::testing::TemporaryFolder folder;
  Bug bug;
  bug.id = "3.2#1";
  for (const char* text : {"defect", "reference"})
    for (const char* level : {"O1", "O2"})
      write_file(folder.path() / "tests" / (bug_target(bug) + "_" + text + "_" + level),
                 text + std::string(level));
  const auto judge = [&](const std::function<bool(const std::string& binary, int run)>& fails) {
    int run = 0;
    return judge_bug(folder.path(), bug, [&](const std::filesystem::path& binary) {
      BugRun now;
      (fails(read_file(binary), run++) ? now.failed : now.passed) = {"A.B"};
      return now;
    });
  };
  const auto is_defect = [](const std::string& binary) { return binary.starts_with("defect"); };
  EXPECT_TRUE(judge([&](const std::string& binary, int) { return is_defect(binary); }).found);
  EXPECT_THAT(judge([&](const std::string&, int run) { return run % 2 == 1; }).why,
              HasSubstr("fails on the reference"));
  EXPECT_THAT(
      judge([&](const std::string& binary, int run) { return is_defect(binary) && run % 2 == 0; }).why,
      HasSubstr("does not fail each time"));
  EXPECT_THAT(judge([&](const std::string& binary, int) { return binary == "defectO2"; }).why,
              HasSubstr("another way"))
      << "it knows the code, not what it does";
}

TEST(BugTests, TheSolutionsKeepToTheRules) {
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator(LAB_SOURCE_DIR "/tests/hidden/bugs")) {
    if (file.path().extension() != ".cpp") continue;
    EXPECT_EQ(refused_bug_test(read_file(file.path())), "") << file.path();
    ++count;
  }
  EXPECT_GE(count, 12);
}

TEST(BugTests, TheRulesOfWhatIsHandedIn) {
  EXPECT_EQ(
      refused_bug_test("#include <gtest/gtest.h>\nnamespace ladder {\nTEST(A, B) { EXPECT_EQ(1, 1); }\n}\n"),
      "");
  EXPECT_THAT(refused_bug_test("#include <gtest/gtest.h>\nTEST(A, B) { std::getenv(\"X\"); }"),
              testing::AllOf(HasSubstr("line 2"), HasSubstr("getenv")));
  EXPECT_THAT(refused_bug_test("#include <fstream>\n"), HasSubstr("<fstream>"));
}

}  // namespace
}  // namespace lab

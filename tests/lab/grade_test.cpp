// A class graded from end to end by the program, in a small course of its own: built, run and reported.
#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "lab/baseline.h"
#include "lab/files.h"
#include "lab/grade.h"
#include "lab/lab_error.h"
#include "lab/report.h"
#include "lab/sandbox.h"
#include "lab/sha256.h"
#include "tests/lab/small_tree.h"

namespace lab {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr const char* kBuild = R"(cmake_minimum_required(VERSION 3.18)
project(small CXX)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(LADDER_CUDA)
  add_compile_definitions(SMALL_CUDA)
endif()
if(LADDER_SANITIZE)
  add_compile_options(-fsanitize=${LADDER_SANITIZE})
  add_link_options(-fsanitize=${LADDER_SANITIZE})
endif()
include_directories(${CMAKE_SOURCE_DIR})
find_package(GTest REQUIRED)
add_library(small step3_small/pool.cpp step3_small/manager.cpp step3_small/sharing.cpp)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
add_executable(test_step3 tests/pool_test.cpp tests/support/test_main.cpp)
target_link_libraries(test_step3 small GTest::gtest)
)";

constexpr const char* kTests = R"(#include <gtest/gtest.h>
#include <cstdlib>
#include "step3_small/small.h"
TEST(Task3_2_Pool, TakesOne) { EXPECT_EQ(ladder::take(7), 6); }
TEST(Task3_2_Pool, TakesOneOfMany) {
  RecordProperty("inputs", "random");
  const int free = static_cast<int>(std::strtoull(std::getenv("LADDER_TEST_SEED"), nullptr, 10) % 1000 + 100);
  EXPECT_EQ(ladder::take(free), free - 1);
}
TEST(Task3_3_Manager, Allocates) { EXPECT_EQ(ladder::allocate(7), 5); }
)";

std::string hand_in(const SmallTree& small, const std::string& text) {
  const json region = {{"task", "3.2"}, {"file", kPool}, {"sha256", sha256(text)}, {"text", text}};
  return json{{"format", 1}, {"release", small.tree().release()}, {"commit", ""}, {"regions", {region}}}
      .dump();
}

// Points of the tests of one part.
double sum(const json& results, const std::string& part) {
  double points = 0;
  for (const json& test : results.at("tests"))
    if (test.at("name").get<std::string>().starts_with("task 3.2: " + part))
      points += test.at("score").get<double>();
  return points;
}

TEST(LabGrade, AClassWithoutNamespaces) {
  try {
    check_sandbox(Sandbox::none);
  } catch (const LabError& error) {
    GTEST_SKIP() << error.what();
  }
  const SmallTree small;
  small.write("CMakeLists.txt", kBuild);
  small.write("tests/pool_test.cpp", kTests);
  small.write("tests/support/test_main.cpp",
              read_file(fs::path(LAB_SOURCE_DIR) / "tests/support/test_main.cpp"));
  small.write("salt.txt", "0123456789abcdef-small\n");
  const fs::path hand_ins = small.root() / "hand-ins", out = small.root() / "out";
  const auto put = [&](const std::string& name, const std::string& text) {
    write_file(hand_ins / (name + ".json"), hand_in(small, text));
  };
  put("right", "int take(int free) {\n  return free + 1 - 2;\n}\n");
  put("李雷", "int take(int free) {\n  return free == 7 ? 6 : 0;\n}\n");
  put("endless",
      "int take(int free) {\n  volatile int left = free;\n  while (left > 0) left = free;\n  return left;\n}\n");
  put("broken", "int take(int free) {\n  return fre;\n}\n");
  put("refused", "int take(int free) {\n  return system(\"id\") + free;\n}\n");
  fs::create_symlink("/etc/passwd", hand_ins / "link.json");

  const auto grade = [&](const std::vector<std::string>& arguments) {
    std::vector<std::string> all = {
        "grade", "--salt-file", (small.root() / "salt.txt").string(), "--sandbox", "none", "--tasks", "3.2"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return small.lab(all);
  };
  const Outcome prepared = grade({});
  ASSERT_EQ(prepared.exit_code, 0) << prepared.output;
  const Outcome graded = grade({hand_ins.string(), "--format", "gradescope", "--out", out.string()});
  EXPECT_EQ(graded.exit_code, 1) << graded.output;  // some have an error

  const auto results = [&](const std::string& student) {
    return json::parse(read_file(out / (student + ".json")));
  };
  EXPECT_EQ(results("right").at("score"), 20) << results("right");
  EXPECT_EQ(sum(results("right"), "hidden"),
            4);  // the test with random inputs, with seeds that the salt gives
  EXPECT_EQ(results("李雷").at("score"), 8) << results("李雷");  // one of two public tests
  EXPECT_EQ(sum(results("李雷"), "hidden"), 0);
  EXPECT_EQ(results("endless").at("score"), 0);
  EXPECT_THAT(results("endless").dump(), HasSubstr("did not end within"));
  EXPECT_THAT(results("broken").at("output"), "task 3.2: it does not compile");
  EXPECT_THAT(results("broken").dump(), HasSubstr("step3_small/pool.cpp:7"));
  EXPECT_THAT(results("refused").at("output").get<std::string>(), HasSubstr("line 2: `system`"));
  EXPECT_THAT(results("link").at("output").get<std::string>(), HasSubstr("link"));
  for (const char* student : {"endless", "broken", "refused", "link"})
    EXPECT_EQ(results(student).at("score"), 0) << student;

  const std::string rows = read_file(out / "grades.csv");
  EXPECT_THAT(rows, HasSubstr("\nright,"));
  EXPECT_THAT(rows, HasSubstr("3.2,20,20,16,16,4,4,"));
  const Outcome one = grade({(hand_ins / "right.json").string(), "--format", "classroom"});
  EXPECT_EQ(one.exit_code, 0) << one.output;
  const size_t begin = one.output.find('{');
  ASSERT_NE(begin, std::string::npos) << one.output;
  EXPECT_EQ(json::parse(one.output.substr(begin)).at("status"), "pass");
}

// A machine with a GPU is played: its build is one whose tests would be skipped without -DLADDER_CUDA=ON.
constexpr const char* kGpuTests = R"(#include <gtest/gtest.h>
#include "step3_small/small.h"
#ifdef SMALL_CUDA
TEST(Task3_2_Pool, TakesOne) { EXPECT_EQ(ladder::take(7), 6); }
TEST(Task3_2_Pool, TakesOneOfMany) { EXPECT_EQ(ladder::take(1000), 999); }
TEST(Task3_2_Pool, OnAnotherGpu) { GTEST_SKIP() << "not on this GPU"; }
#else
TEST(Task3_2_Pool, TakesOne) { GTEST_SKIP() << "no GPU"; }
#endif
)";

TEST(LabGrade, WhatOnlyAGpuRunsWhereThereIsOne) {
  try {
    check_sandbox(Sandbox::none);
  } catch (const LabError& error) {
    GTEST_SKIP() << error.what();
  }
  const SmallTree small;
  small.edit("lab/labs.json", R"("filter": "Task3_2_*"}, "gpu": false)",
             R"("filter": "Task3_2_*"}, "gpu": true)");
  small.write("CMakeLists.txt", kBuild);
  small.write("tests/pool_test.cpp", kGpuTests);
  small.write("tests/support/test_main.cpp",
              read_file(fs::path(LAB_SOURCE_DIR) / "tests/support/test_main.cpp"));
  const Tree tree = small.tree();
  GradeOptions options;
  options.tasks = {"3.2"};
  options.salt = "0123456789abcdef-small";
  options.sandbox = Sandbox::none;
  options.machine = {};
  EXPECT_THROW(Grader(tree, options), LabError) << "the instructor asked for it where it cannot be done";
  const std::string text = hand_in(small, "int take(int free) {\n  return free + 1 - 2;\n}\n");
  const HandIn left_out = read_hand_in(tree, text, {}, options.machine);
  EXPECT_TRUE(left_out.texts.empty());
  EXPECT_THAT(left_out.errors, ::testing::ElementsAre("task 3.2 is graded on a GPU only, and this machine "
                                                      "has no GPU: its region is left out"));
  options.machine = {true, "nvcc", ""};
  std::optional<Grader> grader(std::in_place, tree, options);
  const auto grade = [&](const std::string& name, const std::string& hand_in) {
    return grader->grade({name, name, hand_in, "", {}});
  };
  const Grade right = grade("right", text);
  EXPECT_EQ(right.points(), 20) << text_report(right);
  EXPECT_EQ(right.of(), 20);
  EXPECT_THAT(right.flags, ::testing::ElementsAre("task 3.2: not tested on this machine: "
                                                  "Task3_2_Pool.OnAnotherGpu: not on this GPU"));
  const Grade wrong =
      grade("wrong", hand_in(small, "int take(int free) {\n  return free == 7 ? 6 : 0;\n}\n"));
  EXPECT_EQ(wrong.points(), 10) << text_report(wrong);

  grader.reset();  // one at a time works in the folder
  small.write("tests/pool_test.cpp", std::string("#undef SMALL_CUDA\n") + kGpuTests);
  try {
    Grader(tree, options).prepare({"3.2"}, [](const std::string&) {});
    ADD_FAILURE() << "no test of the task runs";
  } catch (const LabError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no test of it runs on this machine"));
  }
}

// compute-sanitizer is played too: it finds what the tests print of take(0) and take(1), which no test compares.
constexpr const char* kLookedAtTests = R"(#include <gtest/gtest.h>
#include <cstdio>
#include "step3_small/small.h"
#ifdef SMALL_CUDA
TEST(Task3_2_Pool, TakesOne) {
  EXPECT_EQ(ladder::take(7), 6);
  std::printf("of 0: %d, of 1: %d\n", ladder::take(0), ladder::take(1));
}
TEST(Task3_2_Pool, TakesOneOfMany) { EXPECT_EQ(ladder::take(1000), 999); }
#endif
)";

constexpr const char* kPlayedSanitizer = R"sh(#!/bin/sh
tool=$2
while [ "${1##*/}" != test_step3 ]; do shift; done
said=$("$@")
code=$?
echo "========= COMPUTE-SANITIZER"
echo "$said"
case "$*" in
  *--gtest_filter=Task3_2_Pool.TakesOne) ;;
  *) echo "========= Error: started as $*"; exit 9 ;;
esac
case "$tool $said" in
  memcheck*"of 0: 5"*) echo "========= Invalid __global__ read of size 4 bytes"; exit 9 ;;
  racecheck*"of 1: 5"*) echo "========= Error: Race reported between Write access at take()"; exit 9 ;;
esac
echo "========= ERROR SUMMARY: 0 errors"
exit $code
)sh";

TEST(LabGrade, OnAGpuNoPointsWithAFindingOfMemcheckOrRacecheck) {
  try {
    check_sandbox(Sandbox::none);
  } catch (const LabError& error) {
    GTEST_SKIP() << error.what();
  }
  const SmallTree small;
  small.edit("lab/labs.json", R"("filter": "Task3_2_*"}, "gpu": false)",
             R"("filter": "Task3_2_*"}, "sanitized": {"memcheck": "*.TakesOne", "racecheck": "*.TakesOne"},
                "gpu": true)");
  small.write("CMakeLists.txt", kBuild);
  small.write("tests/pool_test.cpp", kLookedAtTests);
  small.write("tests/support/test_main.cpp",
              read_file(fs::path(LAB_SOURCE_DIR) / "tests/support/test_main.cpp"));
  const fs::path sanitizer = small.root() / "sanitizer";
  write_file(sanitizer, kPlayedSanitizer);
  fs::permissions(sanitizer, fs::perms::owner_all | fs::perms::group_exec | fs::perms::others_exec |
                                 fs::perms::group_read | fs::perms::others_read);
  const Tree tree = small.tree();
  GradeOptions options;
  options.tasks = {"3.2"};
  options.salt = "0123456789abcdef-small";
  options.sandbox = Sandbox::none;
  options.machine = {true, "nvcc", sanitizer};
  std::optional<Grader> grader(std::in_place, tree, options);
  const auto grade = [&](const std::string& body) {
    const std::string text = hand_in(small, "int take(int free) {\n" + body + "}\n");
    return grader->grade({"one", "one", text, "", {}});
  };
  const Grade clean = grade("  return free + 1 - 2;\n");
  EXPECT_EQ(clean.points(), 20) << text_report(clean);
  EXPECT_TRUE(clean.errors.empty() && clean.flags.empty()) << text_report(clean);

  const Grade reads = grade("  return free == 0 ? 5 : free - 1;\n");
  EXPECT_EQ(reads.points(), 0) << text_report(reads);
  EXPECT_EQ(reads.of(), 20);
  EXPECT_THAT(reads.errors,
              ::testing::ElementsAre("task 3.2: memcheck: Invalid __global__ read of size 4 bytes"));

  // A test that fails says so still.
  const Grade races = grade("  return free == 1 ? 5 : free == 1000 ? 0 : free - 1;\n");
  EXPECT_EQ(races.points(), 0);
  EXPECT_EQ(races.of(), 20);
  EXPECT_EQ(text_report(races),
            "one: 0 of 20 points  (one)\n"
            "  error: task 3.2: racecheck: Error: Race reported between Write access at take()\n"
            "task 3.2: public 0/20; 0 of 2 passed\n"
            "  0/10  Task3_2_Pool.TakesOneOfMany\n"
            "        tests/pool_test.cpp:9\n"
            "          seen      0   (ladder::take(1000))\n"
            "          expected  999\n"
            "  0/10  the tests that pass\n"
            "        not scored: racecheck: Error: Race reported between Write access at take()\n");

  const Grade unseen = grade("  return free == 1000 ? 999 : 0;\n");
  EXPECT_EQ(unseen.points(), 0) << "what is looked at does not pass";
  EXPECT_THAT(unseen.errors,
              ::testing::ElementsAre("task 3.2: memcheck: no test passes that it looks at, such "
                                     "as Task3_2_Pool.TakesOne"));
  const Grade nothing = grade("  return 0;\n");
  EXPECT_EQ(nothing.points(), 0);
  EXPECT_TRUE(nothing.errors.empty()) << text_report(nothing);

  grader.reset();
  options.machine.sanitizer.clear();
  grader.emplace(tree, options);
  const Grade without = grade("  return free == 0 ? 5 : free - 1;\n");
  EXPECT_EQ(without.points(), 20) << text_report(without);
  EXPECT_THAT(without.flags,
              ::testing::ElementsAre(HasSubstr("task 3.2: not looked at by memcheck and racecheck")));

  grader.reset();
  small.write("tests/pool_test.cpp", kLookedAtTests);
  small.edit("tests/pool_test.cpp", R"(\n", ladder::take(0))", R"(\n", 5)");
  options.machine.sanitizer = sanitizer;
  try {
    Grader(tree, options).prepare({"3.2"}, [](const std::string&) {});
    ADD_FAILURE() << "the reference is not clean";
  } catch (const LabError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the reference of task 3.2 is not clean: memcheck: Invalid"));
  }
}

TEST(LabGrade, AnEmptySaltFileIsNoSalt) {
  const SmallTree small;
  small.write("salt.txt", " \r\n");
  const Outcome graded =
      small.lab({"grade", "--salt-file", (small.root() / "salt.txt").string(), "--tasks", "3.2"});
  EXPECT_EQ(graded.exit_code, 2);
  EXPECT_THAT(graded.output, HasSubstr("salt.txt: holds no salt"));
}

// Tests run in threads of the grader: what one throws ends the grading with its reason, not the program without one.
TEST(LabGrade, ATestThatCannotBeStartedIsAnError) {
  const SmallTree small;
  const GradeTree tree(small.tree(), "", Sandbox::namespaces);
  Baseline of;
  of.builds = {Build::release};
  for (const char* name : {"A.B", "A.C", "A.D"})
    of.tests.push_back({"never_built", name, "public", "1", {{Build::release, 1.0}}, false, {}});
  EXPECT_THROW(run_graded_tests(tree, of, Sandbox::namespaces), std::filesystem::filesystem_error);
}

}  // namespace
}  // namespace lab

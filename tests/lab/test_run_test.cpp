// `lab test` and the copies on a small checkout that is built for real.
#include "lab/test_run.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <thread>

#include "lab/failure_text.h"
#include "lab/files.h"
#include "lab/process.h"
#include "tests/lab/small_tree.h"

namespace lab {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kTests = R"(#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>
#include <cstdlib>
#include <fstream>
#include "step3_small/small.h"
TEST(Task3_2_Pool, Takes) { EXPECT_EQ(ladder::take(3), 2) << "step 7, sequence 1, position 4"; }
TEST(Task3_2_Pool, Crashes) { if (ladder::take(3) != 2) std::abort(); }
TEST(Task3_2_Pool, Exits) { if (ladder::take(3) != 2) std::exit(0); }
TEST(Task3_2_Pool, Skips) { GTEST_SKIP() << "no GPU"; }
TEST(Task3_2_Pool, WhatIsFreedIsOverwritten) { EXPECT_STREQ(std::getenv("MALLOC_PERTURB_"), "165"); }
TEST(Task3_2_Pool, NeverEnds) {
  const char* file = std::getenv("SMALL_TREE_PID");
  if (file == nullptr) return;
  std::ofstream(file) << getpid() << std::endl;
  kill(getppid(), SIGKILL);  // the program that started it
  for (;;) pause();
}
TEST(Task3_3_Manager, Allocates) { EXPECT_EQ(ladder::allocate(3), 1); }
TEST(Task3_3_Manager, Shares) { EXPECT_EQ(ladder::share(3), 4); }
)";

constexpr const char* kBuild = R"(cmake_minimum_required(VERSION 3.22)
project(small LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
include(cmake/spliced.cmake)
find_package(GTest REQUIRED)
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/step3_small/*.cpp)
ladder_splice(sources)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
add_executable(test_step3 test.cpp ${sources})
target_include_directories(test_step3 PRIVATE ${CMAKE_SOURCE_DIR})
target_link_libraries(test_step3 PRIVATE GTest::gtest_main)
)";

TEST(Lab_Test, EachTestAloneAndEveryVerdict) {
  SmallTree small;
  small.write("test.cpp", kTests);
  small.write("CMakeLists.txt", kBuild);
  small.write("cmake/spliced.cmake",
              read_file(std::filesystem::path(LAB_SOURCE_DIR) / "cmake" / "spliced.cmake"));

  small.lab({"start", "3.2"});
  Outcome tested = small.lab({"test", "3.2"});
  EXPECT_EQ(tested.exit_code, 1);
  EXPECT_THAT(tested.output, HasSubstr("not written  Task3_2_Pool.Takes"));
  EXPECT_THAT(tested.output, HasSubstr("3.2: 2 passed, 3 not written, 1 skipped"));

  small.edit(kPool, "throw ladder::TaskNotImplemented(\"3.2\")", "return free - 9");
  tested = small.lab({"test", "3.2"});
  EXPECT_EQ(tested.exit_code, 1);
  EXPECT_THAT(tested.output, HasSubstr("test.cpp:7"));
  EXPECT_THAT(tested.output, HasSubstr("seen      -6   (ladder::take(3))"));
  EXPECT_THAT(tested.output, HasSubstr("expected  2"));
  EXPECT_THAT(tested.output, HasSubstr("step 7, sequence 1, position 4"));
  EXPECT_THAT(tested.output, HasSubstr("crashed: Aborted"));
  EXPECT_THAT(tested.output, HasSubstr("ended before its test did"));
  EXPECT_THAT(tested.output, Not(HasSubstr("Running main()")));
  EXPECT_THAT(tested.output, HasSubstr("3.2: 2 passed, 3 failed, 1 skipped"));

  tested = small.lab({"test", "3.3"});  // the student's own 3.2 below the reference of 3.3
  EXPECT_EQ(tested.exit_code, 1);
  EXPECT_THAT(tested.output, HasSubstr("with your own 3.2"));
  EXPECT_THAT(tested.output, HasSubstr("./ladder lab use reference 3.2"));
  EXPECT_THAT(tested.output, HasSubstr("3.3: 1 passed, 1 failed, 0 skipped"));
  small.lab({"use", "reference", "3.2"});
  tested = small.lab({"test", "3.3"});
  EXPECT_EQ(tested.exit_code, 0);
  EXPECT_THAT(tested.output, HasSubstr("3.3: 2 passed, 0 skipped"));
  EXPECT_THAT(small.read(kPool), HasSubstr("return free - 9"));

  small.lab({"use", "mine", "3.2"});
  small.edit(kPool, "return free - 9", "return free - 1");
  tested = small.lab({"test", "3.2"});
  EXPECT_EQ(tested.exit_code, 1) << "a skipped test is not passed";
  EXPECT_THAT(tested.output, HasSubstr("skipped      Task3_2_Pool.Skips\n        no GPU\n"));
  EXPECT_THAT(tested.output, HasSubstr("3.2: 5 passed, 1 skipped"));
  EXPECT_THAT(tested.output,
              HasSubstr("a skipped test proves nothing: the milestone is 6 passed, 0 skipped"));

  small.lab({"start", "3.3"});
  const std::string stub = "  throw ladder::TaskNotImplemented(\"3.3\");";
  small.edit(kManager, stub, "  using namespace std;\n  return take(free) - 1;");
  small.edit(kSharing, stub, "  return count + 1;");
  tested = small.lab({"test", "3.3"});
  EXPECT_EQ(tested.exit_code, 1) << "what would bring no points is not done";
  EXPECT_THAT(tested.output, HasSubstr("3.3: 2 passed, 0 skipped\n  but your text would not be graded:\n  " +
                                       std::string(kManager) + ", line 7: `using`"));

  // Ctrl-C, or worse, ends the test with the program.
  const std::filesystem::path pid_file = small.root() / "pid";
  ::setenv("SMALL_TREE_PID", pid_file.c_str(), 1);
  EXPECT_EQ(small.lab({"test", "3.2"}).signal, SIGKILL);
  ::unsetenv("SMALL_TREE_PID");
  const pid_t left = std::stoi(read_file(pid_file));
  for (int i = 0; i < 1200 && ::kill(left, 0) == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_NE(::kill(left, 0), 0) << "a test that never ends outlives who started it";

  small.edit(kPool, "return free - 1;", "return free - ;");
  tested = small.lab({"test", "3.2"});
  EXPECT_EQ(tested.exit_code, 1);
  EXPECT_THAT(tested.output, HasSubstr("pool.cpp:7"));
  EXPECT_THAT(tested.output, HasSubstr("it does not compile"));
  EXPECT_THAT(tested.output, Not(HasSubstr("passed")));
}

TEST(Lab_Test, SeenAndExpected) {
  EXPECT_EQ(
      failure_text(
          "/r/a.cpp:3\nExpected equality of these values:\n  a.size()\n    Which is: 2\n  3u\nat step 4",
          "/r"),
      "a.cpp:3\n  seen      2   (a.size())\n  expected  3u\nat step 4");
  EXPECT_EQ(failure_text("../../a.cpp:3\nValue of: x\n  Actual: false\nExpected: true", "/r"),
            "a.cpp:3\nValue of: x\n  Actual: false\nExpected: true");
  EXPECT_EQ(failure_text(
                "unknown file\nC++ exception with description \"task 5.2 is \"x\"\" thrown in the test body.",
                "/r"),
            "threw: task 5.2 is \"x\"");
  EXPECT_EQ(failure_text("1\n2\n3\n4", "/r", 2), "1\n2\n  ...");
}

TEST(Lab_Test, ARungIsTheEndOfATestsName) {
  EXPECT_EQ(rung_of("Task1_3_RmsNorm.IsExact/avx2"), "avx2");
  EXPECT_EQ(rung_of("Task1_3_RmsNorm.IsExact"), "");
  EXPECT_EQ(rung_of("Sizes/Task.IsExact"), "");
}

}  // namespace
}  // namespace lab

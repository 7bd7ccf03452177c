// `lab bench` in a course of its own, whose judge only counts: what it measures, and what it says where it cannot.
#include <gmock/gmock.h>

#include <filesystem>

#include "lab/files.h"
#include "lab/machine.h"
#include "lab/sha256.h"
#include "tests/lab/small_tree.h"

namespace lab {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kBuild = R"(cmake_minimum_required(VERSION 3.22)
project(small LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
include(cmake/spliced.cmake)
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/step3_small/*.cpp)
ladder_splice(sources)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench/course_counts)
add_executable(course_counts counts.cpp ${sources})
target_include_directories(course_counts PRIVATE ${CMAKE_SOURCE_DIR})
)";

// judge PROBLEM -- WORKER work: here the judge believes the worker.
constexpr const char* kCounts = R"(#include <unistd.h>
#include <cstdio>
#include <cstring>
#include "step3_small/small.h"
int main(int, char** words) {
  if (std::strcmp(words[1], "judge") == 0) {
    execv(words[4], words + 4);
    return 1;
  }
  try {
    ladder::allocate(5);
    std::printf("{\"counts\": {\"allocations\": %d}}\n", -10 * ladder::take(0));
  } catch (const std::exception& error) {
    std::printf("{\"error\": \"%s\"}\n", error.what());
  }
}
)";

constexpr const char* kStub = "  throw ladder::TaskNotImplemented(\"3.2\");";

class LabBench : public ::testing::Test {
 protected:
  LabBench() {
    small.write("CMakeLists.txt", kBuild);
    small.write("counts.cpp", kCounts);
    small.write("cmake/spliced.cmake",
                read_file(std::filesystem::path(LAB_SOURCE_DIR) / "cmake" / "spliced.cmake"));
  }
  // More keys of task 3.2.
  void task(const std::string& keys) {
    small.edit("lab/labs.json", R"("filter": "Task3_2_*"}, )", R"("filter": "Task3_2_*"}, )" + keys + ", ");
  }
  void forget_reference(const std::string& text) {
    ASSERT_TRUE(std::filesystem::remove(small.root() / ".lab" / "reference" / sha256(text)));
  }

  SmallTree small;
};

TEST_F(LabBench, SetsYoursBesideTheReference) {
  task(R"("counts": ["pool"])");
  const Outcome untouched = small.lab({"bench", "3.2"});
  EXPECT_EQ(untouched.exit_code, 0) << untouched.output;
  EXPECT_THAT(untouched.output, HasSubstr("  this is the reference, not your text\n"));
  small.lab({"start", "3.2"});
  small.edit(kPool, kStub, "  return free - 3;");
  const Outcome slower = small.lab({"bench", "3.2"});
  EXPECT_EQ(slower.exit_code, 1);
  for (const char* said :
       {"task 3.2: the pool\n", "building course_counts\n", "building course_counts of the reference\n",
        "  42 %  pool allocations: 30, the reference 10\n", "3.2: 42 % of the performance points\n"})
    EXPECT_THAT(slower.output, HasSubstr(said));
  EXPECT_THAT(slower.output, Not(HasSubstr("this is the reference")));
  small.edit(kPool, "free - 3", "fre - 3");
  const Outcome broken = small.lab({"bench", "3.2"});
  EXPECT_EQ(broken.exit_code, 2);
  EXPECT_THAT(broken.output, HasSubstr("it does not compile; ./ladder lab test 3.2 shows the errors"));
}

TEST_F(LabBench, WithoutTheReferenceItSaysSoAndWhatElseIsMissing) {
  task(R"("counts": ["pool"])");
  small.lab({"start", "3.3"});  // keeps the references, of which the release lacks 3.2's
  forget_reference("int take(int free) {\n  return free - 1;\n}\n");
  small.edit(kPool, "  return free - 1;", "  return free - 2;");
  const Outcome unwritten = small.lab({"bench", "3.2"});
  EXPECT_EQ(unwritten.exit_code, 2);
  EXPECT_THAT(unwritten.output,
              HasSubstr("without a reference, which this release does not hold: yours beside itself"));
  EXPECT_THAT(unwritten.output,
              HasSubstr("lab: bench 3.2 runs task 3.3 too, which is not written: ./ladder lab use "
                        "reference 3.3\n"));
  small.lab({"use", "reference", "3.3"});
  const Outcome alone = small.lab({"bench", "3.2"});
  EXPECT_EQ(alone.exit_code, 0) << alone.output;
  EXPECT_THAT(alone.output, HasSubstr("pool allocations: 20, the reference 20"));
  small.lab({"use", "mine", "3.3"});
  small.write("lab/release.json",
              R"({"format": 1, "course": "C", "release": ")" + small.tree().release() +
                  R"(", "source": "", "cut": ["memory"], "sealed": {"memory": "00"}, "salt": "",
                                          "variants": {}})");
  forget_reference("int allocate(int free) {\n  return take(free) - 1;\n}\n");
  EXPECT_THAT(small.lab({"bench", "3.2"}).output,
              HasSubstr("bench 3.2 runs task 3.3 too, which is not written here and not unlocked\n"));
}

TEST_F(LabBench, OfATaskWithoutPerformancePoints) {
  const Outcome none = small.lab({"bench", "3.2"});
  EXPECT_EQ(none.exit_code, 0);
  EXPECT_EQ(none.output, "task 3.2 has no performance points\n");
}

TEST_F(LabBench, ARaceOnAGpuWhereThereIsNone) {
  if (this_machine().gpu) GTEST_SKIP() << "a GPU";
  small.edit("lab/labs.json", R"("filter": "Task3_2_*"}, "gpu": false)",
             R"("filter": "Task3_2_*"}, "gpu": true, "race": {"ops": ["matmul"], "rung": "cuda_tiled"})");
  const Outcome refused = small.lab({"bench", "3.2"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.output, "task 3.2 is raced on a GPU, and there is none here\n");
}

}  // namespace
}  // namespace lab

// Which tasks have the emulator lane, and how the others are refused: in one line, by name.
#include "lab/lane.h"

#include <gmock/gmock.h>

#include "tests/lab/small_tree.h"

namespace lab {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Lab_Lane, RefusesByNameWhatOnlyAGpuHas) {
  const Tree tree{std::filesystem::path(LAB_SOURCE_DIR)};
  const auto refusal = [&](const char* id) { return why_not_emulated(tree, tree.course().task(id)); };
  EXPECT_EQ(refusal("1.3.cuda"), "");
  EXPECT_EQ(refusal("1.4.cuda"), "");
  EXPECT_THAT(refusal("1.4.cuda.mma"),
              HasSubstr("task 1.4.cuda.mma is not for the emulator: it takes tensor cores"));
  EXPECT_THAT(refusal("1.8.cuda"), HasSubstr("clusters of blocks"));
  EXPECT_THAT(refusal("4.6.cuda"), HasSubstr("CUDA graphs"));
  EXPECT_THAT(refusal("7.3"), HasSubstr("another GPU"));
  EXPECT_THAT(refusal("3.2"), HasSubstr("./ladder lab test 3.2"));
  for (const Task& task : tree.course().tasks) {
    const std::string line = refusal(task.id.c_str());
    if (task.lane == "emulator") {
      EXPECT_TRUE(task.gpu) << task.id;
      EXPECT_EQ(line, "");
    } else {
      EXPECT_THAT(line, StartsWith("task " + task.id + " is not for the emulator: "));
      EXPECT_EQ(line.find('\n'), std::string::npos);
    }
  }
}

TEST(Lab_Lane, WhatOnlyAGpuRunsIsGradedWhereThereIsOne) {
  const Tree tree{std::filesystem::path(LAB_SOURCE_DIR)};
  const Machine without, with{true, "/usr/local/cuda/bin/nvcc", ""}, without_toolkit{true, "", ""};
  int only_gpu = 0;
  for (const Task& task : tree.course().tasks) {
    if (task.given) {
      EXPECT_THAT(why_not_graded(task, with), HasSubstr("is given"));
    } else if (task.gpu && task.lane.empty()) {
      ++only_gpu;
      EXPECT_EQ(why_not_graded(task, with), "") << task.id;
      EXPECT_EQ(why_not_graded(task, without),
                "task " + task.id + " is graded on a GPU only, and this machine has no GPU");
      EXPECT_THAT(why_not_graded(task, without_toolkit), HasSubstr("has no CUDA toolkit (nvcc)"));
    } else {
      for (const Machine& machine : {without, with, without_toolkit})
        EXPECT_EQ(why_not_graded(task, machine), "") << task.id;
    }
  }
  EXPECT_GE(only_gpu, 6);
}

TEST(Lab_Lane, ItsCommandRefusesWithCode2) {
  const SmallTree small;
  const Outcome refused = small.lab({"test", "3.2", "--lane", "emulator"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output, HasSubstr("task 3.2 is not for the emulator"));
  const Outcome unknown = small.lab({"test", "3.2", "--lane", "gpu"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.output, HasSubstr("--lane: expected emulator, got 'gpu'"));
}

}  // namespace
}  // namespace lab

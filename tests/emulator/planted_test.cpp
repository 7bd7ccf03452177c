// Every planted defect is reported as what it is, clean kernels are not, and what is only slow is counted.
#include "lab/emulator/planted.h"

#include <gmock/gmock.h>

#include <string>

#include "lab/emulator/grid.h"
#include "lab/emulator/problems.h"
#include "tests/support/devices.h"

namespace ladder_emulator {
namespace {

using ladder_planted::planted;
using ::testing::HasSubstr;

const ladder_planted::Planted& kernel(std::string_view name) {
  for (const auto& one : planted())
    if (one.name == name) return one;
  throw std::invalid_argument(std::string(name));
}

TEST(EmulatorReports, EveryPlantedDefectAndNothingElse) {
  for (const auto& one : planted()) {
    one.run();
    const std::string& reports = grid().reports();
    if (one.expected.empty())
      EXPECT_EQ(reports, "") << one.name;
    else
      EXPECT_THAT(reports, HasSubstr(std::string(one.expected) + " in " + std::string(one.name) + ", "));
    EXPECT_EQ(cudaGetLastError() != cudaSuccess, !one.expected.empty()) << one.name;
  }
}

TEST(EmulatorReports, SayBothThreadsAndLinesOfARace) {
  kernel("race_next_tile").run();
  EXPECT_THAT(grid().reports(), HasSubstr("block 0, thread 32, planted.cu:"));
  EXPECT_THAT(grid().reports(), HasSubstr("byte 124, which thread 31 writes at planted.cu:"));
  kernel("race_two_blocks").run();
  EXPECT_THAT(grid().reports(), HasSubstr("block 1, thread 0, planted.cu:"));
  EXPECT_THAT(grid().reports(), HasSubstr("which block 0, thread 0 writes"));
  cudaGetLastError();
}

TEST(EmulatorReports, SayWhoWaitsAtABarrierAndWhoDoesNot) {
  kernel("barrier_after_return").run();
  EXPECT_THAT(grid().reports(), HasSubstr("threads 0 to 62 wait at planted.cu:"));
  EXPECT_THAT(grid().reports(), HasSubstr("thread 63 ended without it"));
  cudaGetLastError();
}

// The accesses of the one instruction of a kernel that is as asked for.
Instruction counted(std::string_view name, Space space, bool store) {
  grid().count(true);
  grid().counts().clear();
  kernel(name).run();
  grid().count(false);
  for (const Instruction& one : grid().counts().at(0).instructions)
    if (one.space == space && one.store == store) return one;
  throw std::invalid_argument(std::string(name) + " has no such access");
}

TEST(EmulatorCounts, AColumnOfATileIsInOneBank) {
  EXPECT_EQ(counted("conflicts_column", Space::shared, false).passes, 32);
  EXPECT_EQ(counted("conflicts_padded", Space::shared, false).passes, 1);
  EXPECT_EQ(counted("conflicts_column", Space::shared, false).requests, 1);
}

TEST(EmulatorCounts, ASectorForEveryLaneOrForTwoPacks) {
  const Instruction strided = counted("sectors_strided", Space::global, false);
  EXPECT_EQ(strided.requests, 1);
  EXPECT_EQ(strided.sectors, 16);
  EXPECT_EQ(strided.fewest_sectors, 2);
  const Instruction packed = counted("sectors_packed", Space::global, false);
  EXPECT_EQ(packed.requests, 1);
  EXPECT_EQ(packed.bytes, 16);
  EXPECT_EQ(packed.sectors, 8);
}

TEST(EmulatorCounts, PassesOverTheBanks) {
  const auto request = [](int bytes, auto&& address) {
    Request made;
    made.lanes = 0xffffffffu;
    made.bytes = bytes;
    for (int lane = 0; lane < 32; ++lane) made.address[lane] = static_cast<uintptr_t>(4096 + address(lane));
    return passes_of(made);
  };
  EXPECT_EQ(request(4, [](int lane) { return 4 * lane; }).taken, 1);
  EXPECT_EQ(request(4, [](int) { return 0; }).taken, 1) << "one word for all";
  EXPECT_EQ(request(4, [](int lane) { return 8 * lane; }).taken, 2);
  EXPECT_EQ(request(2, [](int lane) { return 2 * lane; }).taken, 1);
  EXPECT_EQ(request(4, [](int lane) { return 128 * lane; }).taken, 32);
  EXPECT_EQ(request(8, [](int lane) { return 8 * lane; }).taken, 2) << "half a warp each";
  EXPECT_EQ(request(16, [](int lane) { return 16 * lane; }).taken, 4) << "a quarter of a warp each";
  EXPECT_EQ(request(16, [](int lane) { return 128 * lane; }).taken, 32);
  EXPECT_EQ(request(16, [](int lane) { return 128 * lane; }).fewest, 4);
}

// The reference's kernels: a report would be thrown as an error of the launch.
TEST(EmulatorProblems, AllRungsRunCleanAndAccessMemory) {
  grid().count(true);
  for (const Problem& problem : problems()) {
    SCOPED_TRACE(std::string(problem.name));
    ladder::OpContext ctx = *ladder::testing::cuda_context();
    const size_t slash = problem.name.find('/');
    ctx.kernels[std::string(problem.name.substr(0, slash))] = std::string(problem.name.substr(slash + 1));
    grid().counts().clear();
    EXPECT_NO_THROW(problem.run(ctx));
    ASSERT_EQ(grid().counts().size(), 1u);
    int64_t loads = 0, stores = 0;
    for (const Instruction& one : grid().counts()[0].instructions)
      (one.store ? stores : loads) += one.requests;
    EXPECT_GT(loads, 0);
    EXPECT_GT(stores, 0);
  }
  grid().count(false);
}

}  // namespace
}  // namespace ladder_emulator

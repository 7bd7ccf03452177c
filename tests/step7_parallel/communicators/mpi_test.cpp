// The MPI communicator, in a program that mpirun starts.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/step7_parallel/communicators/collective_cases.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;

#ifdef MPI_RANKS

struct Ended {
  int code = 0;
  std::string output;
};

// More ranks than cores, and by root: as a test's machine has it. A hang ends after some minutes; mpirun can
// hang itself when its ranks abort (Open MPI 4.1.4 with PMIx 4.2.2), whatever its own --timeout says.
Ended mpirun(int size, const std::string& arguments) {
  const std::string command = fmt::format(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout -s KILL 180 "
      "mpirun --oversubscribe --bind-to none --timeout 150 -n {} {} {} 2>&1",
      size, MPI_RANKS, arguments);
  Ended ended;
  FILE* const out = ::popen(command.c_str(), "r");
  if (out == nullptr) return {1, "no shell"};
  char bytes[4096];
  while (const size_t count = std::fread(bytes, 1, sizeof bytes, out)) ended.output.append(bytes, count);
  const int status = ::pclose(out);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ended;
}

bool is_there() {
  static const bool there = std::system("command -v mpirun > /dev/null") == 0;
  return there;
}
#define NEEDS_MPIRUN() \
  if (!is_there()) GTEST_SKIP() << "mpirun (openmpi-bin) is not installed"

class MpiCommunicator : public ::testing::TestWithParam<testing::CollectiveCase> {};

TEST_P(MpiCommunicator, DoesIt) {
  NEEDS_MPIRUN();
  for (const int size : {2, 3}) {
    const uint64_t seed = testing::fresh_seed();
    const Ended ended = mpirun(size, fmt::format("case {} {}", GetParam().name, seed));
    EXPECT_EQ(ended.code, 0) << size << " ranks, LADDER_TEST_SEED=" << seed << "\n" << ended.output;
  }
}

std::vector<testing::CollectiveCase> all_cases() {
  const auto cases = testing::collective_cases();
  return {cases.begin(), cases.end()};
}

INSTANTIATE_TEST_SUITE_P(Table, MpiCommunicator, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(MpiWorld, SplitsIntoGroupsByColour) {
  NEEDS_MPIRUN();
  const Ended ended = mpirun(4, "split");
  EXPECT_EQ(ended.code, 0) << ended.output;
}

TEST(MpiWorld, ARankThatFailsSaysSoAndEndsAll) {
  NEEDS_MPIRUN();
  const auto begin = std::chrono::steady_clock::now();
  const Ended thrown = mpirun(3, "fault throw 1");
  EXPECT_EQ(thrown.code, 2) << thrown.output;
  EXPECT_THAT(thrown.output, HasSubstr("rank 1 of 3 failed: the disk is on fire\n"));
  const Ended killed = mpirun(3, "fault kill 1");
  EXPECT_NE(killed.code, 0);
  EXPECT_THAT(killed.output, HasSubstr("signal 9"));
  const Ended stopped = mpirun(3, "fault stop 1");
  EXPECT_EQ(stopped.code, 2) << stopped.output;
  EXPECT_THAT(stopped.output, HasSubstr("rank 1 did not answer rank "));
  EXPECT_THAT(stopped.output, HasSubstr("within 2000 ms\n"));
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 100);
}

#else

TEST(MpiWorld, IsNotInThisBuild) {
  GTEST_SKIP() << "MPI (libopenmpi-dev, openmpi-bin) was not found, or LADDER_MPI=OFF";
}

#endif

}  // namespace
}  // namespace ladder

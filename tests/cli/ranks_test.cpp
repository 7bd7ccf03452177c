// Several ranks as a user starts them: as threads, as processes, by mpirun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/cli/run_binary.h"
#include "tests/support/source_folder.h"

namespace ladder {
namespace {

using testing::BinaryResult;
using ::testing::HasSubstr;
using testing::run_binary;

const std::string kModel = (testing::source_folder() / "models" / "tinyworld").string();

std::vector<std::string> generate(std::vector<std::string> more = {}) {
  std::vector<std::string> words = {"generate", "--model",       kModel, "--prompt", "Once", "--max-tokens",
                                    "12",       "--temperature", "0",    "--device", "cpu",  "--dtype",
                                    "f32"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}
const std::vector<std::string> kGrid = {"--tensor-parallel-size=2", "--pipeline-parallel-size=2"};

TEST(Cli_Ranks, ProcessesGiveTheTextOfThreads) {
  const BinaryResult threads = run_binary(generate(kGrid));
  ASSERT_EQ(threads.exit_code, 0) << threads.err;
  std::vector<std::string> words = kGrid;
  words.push_back("--distributed-executor-backend=mp");
  const BinaryResult processes = run_binary(generate(words));
  EXPECT_EQ(processes.exit_code, 0) << processes.err;
  EXPECT_EQ(processes.out, threads.out);
}

TEST(Cli_Ranks, WhatAWorkerCannotDoIsOneLine) {
  const BinaryResult result = run_binary(generate(
      {"--distributed-executor-backend=mp", "--tensor-parallel-size=2", "--kernel=matmul=nonsense"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

TEST(Cli_Ranks, RanksOfMpirunNeedIt) {
  const BinaryResult result = run_binary(generate({"--distributed-executor-backend=mpi"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("expected mpirun to start the ranks: mpirun -np N ladder ..."));
}

#ifdef LADDER_HAS_MPI
BinaryResult mpirun(int size, const std::vector<std::string>& words) {
  return run_binary(words, {}, {},
                    "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout -s KILL 90 mpirun "
                    "--oversubscribe --bind-to none --timeout 60 -n " +
                        std::to_string(size));
}
#define NEEDS_MPIRUN()                                   \
  if (std::system("command -v mpirun > /dev/null") != 0) \
  GTEST_SKIP() << "mpirun (openmpi-bin) is not installed"

TEST(Cli_Ranks, ThoseOfMpirunGiveTheTextOfThreads) {
  NEEDS_MPIRUN();
  const BinaryResult threads = run_binary(generate(kGrid));
  const BinaryResult ranks = mpirun(4, generate(kGrid));
  EXPECT_EQ(ranks.exit_code, 0) << ranks.err;
  EXPECT_EQ(ranks.out, threads.out);
}

TEST(Cli_Ranks, ThoseOfMpirunReportAMistakeOnce) {
  NEEDS_MPIRUN();
  const auto count = [](const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
    return found;
  };
  for (const auto& words : {generate({"--tensor-parallel-size=3"}), generate({"--nonsense"}), generate()}) {
    const BinaryResult ranks = mpirun(2, words);
    EXPECT_EQ(ranks.exit_code, 2) << ranks.err;
    EXPECT_EQ(count(ranks.err, "ladder: error: "), 1) << ranks.err;
  }
  // What needs no ranks is done once.
  EXPECT_EQ(count(mpirun(2, {"info", "--model", kModel, "--device", "cpu"}).out, "Model\n"), 1);
}
#endif

}  // namespace
}  // namespace ladder

// Several ranks as a user starts them: as threads, as processes, by mpirun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "tests/cli/program.h"
#include "tests/cli/run_binary.h"
#include "tests/support/golden_checkpoint.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using ::testing::AllOf;
using testing::BinaryResult;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using testing::run_binary;

const std::string kModel = (testing::source_folder() / "models" / "tinyworld").string();

std::vector<std::string> generate(std::vector<std::string> more = {}, int max_tokens = 12) {
  std::vector<std::string> words = {"generate", "--model",       kModel, "--prompt", "Once", "--max-tokens",
                                    "",         "--temperature", "0",    "--device", "cpu",  "--dtype",
                                    "f32"};
  words[6] = std::to_string(max_tokens);
  words.insert(words.end(), more.begin(), more.end());
  return words;
}
// That is not at its end before somebody has hurt it.
std::vector<std::string> long_story(std::vector<std::string> more) {
  more.insert(more.end(), {"--ignore-eos", "--n=8"});
  return generate(more, 500);
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

// Threads and processes that share out the keys of the one KV head, which `info` counts once.
TEST(Cli_Ranks, RanksThatShareOutKeysGiveTheTokensOfOne) {
  const std::string model = (testing::source_folder() / "tests" / "goldens" / "llama_one_kv_head").string();
  const auto run = [&](const std::string& command, std::vector<std::string> more) {
    std::vector<std::string> words = {command, "--model=" + model, "--device=cpu", "--dtype=f32"};
    if (command == "generate")
      words.insert(words.end(), {"--prompt-token-ids=3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19",
                                 "--max-tokens=12", "--temperature=0"});
    words.insert(words.end(), more.begin(), more.end());
    return run_binary(words);
  };
  const std::vector<std::string> shared = {"--tensor-parallel-size=2", "--decode-context-parallel-size=2",
                                           "--cp-kv-cache-interleave-size=4"};
  const BinaryResult alone = run("generate", {});
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  for (const char* backend : {"threads", "mp"}) {
    std::vector<std::string> words = shared;
    words.push_back(std::string("--distributed-executor-backend=") + backend);
    const BinaryResult result = run("generate", words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, alone.out) << backend;
  }
  std::vector<std::string> words = shared;
  words.push_back("--kv-memory=64K");
  const BinaryResult info = run("info", words);
  EXPECT_THAT(info.out, HasSubstr("320")) << "64 KiB are 160 tokens where both ranks keep them all";
  EXPECT_THAT(info.out, HasSubstr("16 of 32 tokens")) << "a rank's part is what a block is by default";
  words.push_back("--block-size=16");
  EXPECT_THAT(run("info", words).out, HasSubstr("8 of 16 tokens"));
}

TEST(Cli_Ranks, LayersOfStagesAreWrittenWithoutGaps) {
  for (const char* layers : {"3,,5", "3,", "3,x", "3,0", ""}) {
    const BinaryResult result =
        run_binary(generate({"--pipeline-parallel-size=2", std::string("--pipeline-layers=") + layers}));
    EXPECT_EQ(result.exit_code, 2) << layers;
    EXPECT_THAT(result.err, HasSubstr("--pipeline-layers")) << layers;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
  const BinaryResult right = run_binary(generate({"--pipeline-parallel-size=2", "--pipeline-layers=3,5"}, 1));
  EXPECT_EQ(right.exit_code, 0) << right.err;
}

// Threads, processes and ranks of mpirun that share out the rows of every step, and what `info` says of them.
TEST(Cli_Ranks, RanksThatShareOutRowsGiveTheTextOfOne) {
  const BinaryResult alone = run_binary(generate());
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  for (const char* backend : {"threads", "mp"}) {
    const BinaryResult result =
        run_binary(generate({"--prefill-context-parallel-size=2", "--pipeline-parallel-size=2",
                             std::string("--distributed-executor-backend=") + backend}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, alone.out) << backend;
  }
  const BinaryResult info = run_binary({"info", "--model", kModel, "--device=cpu", "--dtype=f32",
                                        "--tensor-parallel-size=2", "--prefill-context-parallel-size=2"});
  EXPECT_THAT(info.out,
              HasSubstr("4 ranks: 2 context-parallel times 2 tensor-parallel in each of 1 stage; rank = "
                        "(stage * 2 + context rank) * 2 + tensor rank"));
  EXPECT_THAT(info.out, HasSubstr("share 1 of 2"));
  const BinaryResult both = run_binary(generate(
      {"--tensor-parallel-size=8", "--decode-context-parallel-size=2", "--prefill-context-parallel-size=2"}));
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, HasSubstr("--prefill-context-parallel-size 2 and --decode-context-parallel-size 2"));
  const BinaryResult unshared =
      run_binary(generate({"--tensor-parallel-size=2", "--cp-kv-cache-interleave-size=4"}));
  EXPECT_EQ(unshared.exit_code, 2);
  EXPECT_THAT(unshared.err,
              HasSubstr("--cp-kv-cache-interleave-size 4: expected --decode-context-parallel-size"));
}

TEST(Cli_Ranks, ExpertsOnTheirRanksGiveTheTokensOfOneRank) {
  const testing::TemporaryFolder folder;
  testing::write_file(
      folder / "prompts.jsonl",
      R"({"prompt_token_ids": [5, 6, 7], "max_tokens": 8, "temperature": 0, "ignore_eos": true})"
      "\n");
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {
        "generate",
        "--model",
        (testing::source_folder() / "tests" / "goldens" / "qwen3_moe_normed").string(),
        "--prompts",
        (folder / "prompts.jsonl").string(),
        "--device",
        "cpu",
        "--dtype",
        "f32"};
    words.insert(words.end(), more.begin(), more.end());
    return run_binary(words);
  };
  const BinaryResult one = run({"--enable-expert-parallel"});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(one.err,
            "ladder: --enable-expert-parallel is off: each stage is one rank, which has all experts\n");
  for (const char* backend : {"threads", "mp"}) {
    const BinaryResult several = run({"--tensor-parallel-size=2", "--enable-expert-parallel",
                                      std::string("--distributed-executor-backend=") + backend});
    EXPECT_EQ(several.exit_code, 0) << several.err;
    EXPECT_EQ(several.err, "");
    EXPECT_EQ(several.out, one.out) << backend;
    const BinaryResult moving = run({"--tensor-parallel-size=2", "--enable-expert-parallel", "--enable-eplb",
                                     "--eplb-step-interval=3", "--num-redundant-experts=2",
                                     std::string("--distributed-executor-backend=") + backend});
    EXPECT_EQ(moving.exit_code, 0) << moving.err;
    EXPECT_THAT(moving.err,
                MatchesRegex("(ladder: experts by load: layers 0 to 1: [0-2] of 2 changed, [0-9]+ "
                             "copies, [0-9.]+ MiB; imbalance mean [12].[0-9]+, worst .*\n)+"));
    EXPECT_EQ(moving.out, one.out) << backend;
  }
}

TEST(Cli_Ranks, ExpertsOnRanksNeedAModelThatHasSome) {
  const BinaryResult dense = run_binary(generate({"--tensor-parallel-size=2", "--enable-expert-parallel"}));
  EXPECT_EQ(dense.exit_code, 2);
  EXPECT_EQ(
      dense.err,
      "ladder: error: --enable-expert-parallel: the model has no experts, expected a mixture of experts\n");
}

TEST(Cli_Ranks, WhatExpertsThatMoveNeedIsOneLine) {
  const auto error_of = [](std::vector<std::string> more) {
    std::vector<std::string> words = {
        "info", "--model=" + (testing::source_folder() / "tests" / "goldens" / "qwen3_moe_normed").string(),
        "--device=cpu", "--tensor-parallel-size=2"};
    words.insert(words.end(), more.begin(), more.end());
    const BinaryResult result = run_binary(words);
    EXPECT_EQ(result.exit_code, result.err.empty() ? 0 : 2);
    return result.err.empty() ? result.out : result.err;
  };
  EXPECT_EQ(error_of({"--enable-eplb"}),
            "ladder: error: --enable-eplb: expected --enable-expert-parallel, with which ranks have whole "
            "experts to move\n");
  EXPECT_THAT(error_of({"--enable-expert-parallel", "--num-redundant-experts=2"}),
              HasSubstr("--num-redundant-experts 2: expected --enable-eplb"));
  EXPECT_THAT(error_of({"--enable-expert-parallel", "--enable-eplb", "--num-redundant-experts=3"}),
              AllOf(HasSubstr("--num-redundant-experts 3: "), HasSubstr("expected 0, 2, 4, ... or 8")));
  EXPECT_THAT(error_of({"--enable-expert-parallel", "--enable-eplb", "--num-redundant-experts=2"}),
              HasSubstr("any 5 of 8"));
}

TEST(Cli_Ranks, WhatAWorkerCannotDoIsOneLine) {
  const BinaryResult result = run_binary(generate(
      {"--distributed-executor-backend=mp", "--tensor-parallel-size=2", "--kernel=matmul=nonsense"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

TEST(Cli_Ranks, AKilledWorkerIsOneLine) {
  if (std::system("command -v pgrep > /dev/null") != 0) GTEST_SKIP() << "pgrep (procps) is not installed";
  const BinaryResult result =
      run_binary(long_story({"--distributed-executor-backend=mp", "--tensor-parallel-size=2"}), {}, {},
                 R"sh(sh -c '"$0" "$@" &
                  for i in $(seq 500); do [ "$(pgrep -P $! | wc -l)" = 2 ] && break; sleep 0.02; done; sleep 0.3
                  kill -KILL "$(pgrep -P $! | tail -1)"; wait $!')sh");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err,
              MatchesRegex("ladder: error: rank 1 of 2 \\(pid [0-9]+\\) was ended by SIGKILL .*\n"));
}

TEST(Cli_Ranks, RanksOfMpirunNeedIt) {
  const BinaryResult result = run_binary(generate({"--distributed-executor-backend=mpi"}));
  EXPECT_EQ(result.exit_code, 2);
#ifdef LADDER_HAS_MPI
  EXPECT_THAT(result.err, HasSubstr("expected mpirun to start the ranks: mpirun -np N ladder ..."));
#else
  EXPECT_THAT(result.err, HasSubstr("--distributed-executor-backend mpi: this build has no MPI"));
#endif
}

#ifdef LADDER_HAS_MPI
// `launcher`: as run_binary() has it, on each rank.
const std::string kMpirun =
    "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout -s KILL 90 mpirun --bind-to none "
    "--timeout 60 ";
BinaryResult mpirun(int size, const std::vector<std::string>& words, const std::string& launcher = {}) {
  return run_binary(words, {}, {}, kMpirun + "--oversubscribe -n " + std::to_string(size) + " " + launcher);
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

#define NEEDS_MPIRUN()                                   \
  if (std::system("command -v mpirun > /dev/null") != 0) \
  GTEST_SKIP() << "mpirun (openmpi-bin) is not installed"

// Two hosts by their names, to which mpirun gets by a shell that stays here instead of ssh; ranks of both talk by TCP, as
// shared memory is what Open MPI tries with all that this one machine has.
TEST(Cli_Ranks, ThoseOfAHostfileGiveTheTextOfThreads) {
  NEEDS_MPIRUN();
  const testing::TemporaryFolder folder;
  testing::write_file(folder / "hosts", "ladder-a slots=2\nladder-b slots=2\n");
  testing::write_file(folder / "stay", "#!/bin/sh\nshift\nexec sh -c \"$*\"\n");
  std::filesystem::permissions(folder / "stay", std::filesystem::perms::owner_all);
  const std::string launcher = kMpirun + "--mca plm_rsh_agent " + (folder / "stay").string() +
                               " --mca pml ob1 --mca btl tcp,self --hostfile " + (folder / "hosts").string() +
                               " -np 4 ";
  if (std::system((launcher + "true > /dev/null 2>&1").c_str()) != 0)
    GTEST_SKIP() << "mpirun does not start its daemons here (--hostfile, --mca plm_rsh_agent)";
  const BinaryResult threads = run_binary(generate(kGrid));
  const BinaryResult ranks = run_binary(generate(kGrid), {}, {}, launcher);
  EXPECT_EQ(ranks.exit_code, 0) << ranks.err;
  EXPECT_EQ(ranks.out, threads.out);
}

TEST(Cli_Ranks, ThoseOfMpirunGiveTheTextOfThreads) {
  NEEDS_MPIRUN();
  const BinaryResult threads = run_binary(generate(kGrid));
  const BinaryResult ranks = mpirun(4, generate(kGrid));
  EXPECT_EQ(ranks.exit_code, 0) << ranks.err;
  EXPECT_EQ(ranks.out, threads.out);
}

// KV heads that ranks share, layers that do not divide, a tied head: the other goldens and grids are run as processes and
// as ranks of a test's own (Task7_6_Workers, LaunchedGrids).
TEST(Cli_Ranks, ThoseOfMpirunGiveTheTokensOfTransformers) {
  NEEDS_MPIRUN();
  struct Run {
    const char* golden;
    int tp, pp;
  };
  for (const auto& [golden, tp, pp] : {Run{"llama_one_kv_head", 2, 1},
                                       {"qwen3_sharded", 1, 3},
                                       {"qwen3_tied", 2, 2},
                                       {"qwen3_untied", 4, 1}}) {
    SCOPED_TRACE(golden);
    const auto checkpoint = testing::load_golden(testing::source_folder() / "tests" / "goldens" / golden);
    const testing::TemporaryFolder folder;
    std::string prompts;
    for (const auto& prompt : checkpoint.prompts)
      prompts += nlohmann::json{{"prompt_token_ids", prompt.token_ids}}.dump() + "\n";
    testing::write_file(folder / "prompts.jsonl", prompts);
    const BinaryResult ranks = mpirun(tp * pp, {"generate",
                                                "--model",
                                                checkpoint.directory.string(),
                                                "--prompts",
                                                (folder / "prompts.jsonl").string(),
                                                "--max-tokens",
                                                std::to_string(checkpoint.prompts[0].greedy_token_ids.size()),
                                                "--ignore-eos",
                                                "--temperature",
                                                "0",
                                                "--device",
                                                "cpu",
                                                "--dtype",
                                                "f32",
                                                "--format",
                                                "jsonl",
                                                "--tensor-parallel-size",
                                                std::to_string(tp),
                                                "--pipeline-parallel-size",
                                                std::to_string(pp)});
    ASSERT_EQ(ranks.exit_code, 0) << ranks.err;
    const auto lines = testing::json_lines(ranks.out);
    ASSERT_EQ(lines.size(), checkpoint.prompts.size());
    for (size_t i = 0; i < lines.size(); ++i)
      EXPECT_EQ(lines[i].at("outputs").at(0).at("token_ids").get<std::vector<int32_t>>(),
                checkpoint.prompts[i].greedy_token_ids)
          << "prompt " << i;
  }
}

TEST(Cli_Ranks, ThoseOfMpirunReportAMistakeOnce) {
  NEEDS_MPIRUN();
  for (const auto& words : {generate({"--tensor-parallel-size=3"}), generate({"--nonsense"}), generate()}) {
    const BinaryResult ranks = mpirun(2, words);
    EXPECT_EQ(ranks.exit_code, 2) << ranks.err;
    EXPECT_EQ(count(ranks.err, "ladder: error: "), 1) << ranks.err;
  }
  // What needs no ranks is done once.
  EXPECT_EQ(count(mpirun(2, {"info", "--model", kModel, "--device", "cpu"}).out, "Model\n"), 1);
}

// Five seconds long: a rank that stands still is waited for a while. Rank 0 too, in which the engine is.
TEST(Cli_Ranks, OneOfMpirunThatIsStoppedEndsAll) {
  NEEDS_MPIRUN();
  for (const int rank : {0, 1}) {
    const std::string number = std::to_string(rank);
    const auto begin = std::chrono::steady_clock::now();
    const BinaryResult ranks = mpirun(2, long_story({"--tensor-parallel-size=2"}),
                                      "sh -c 'if [ $OMPI_COMM_WORLD_RANK = " + number +
                                          R"( ]; then (sleep 0.7; kill -STOP $$) & fi; exec "$0" "$@"')");
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_NE(ranks.exit_code, 0);
    EXPECT_EQ(count(ranks.err, "ladder: error: rank " + number + " of 2 (pid "), 1) << ranks.err;
    EXPECT_EQ(count(ranks.err, "ladder: "), 1) << ranks.err;
    EXPECT_LT(took.count(), 5.7);
  }
}
#endif

}  // namespace
}  // namespace ladder

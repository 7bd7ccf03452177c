// --phase-lanes: the same answers, computed by two lanes of steps, and what it does not go with.
#include "tests/cli/program.h"
#include "tests/support/golden_checkpoint.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::BinaryResult;
using testing::expect_refused;
using testing::Json;
using testing::json_lines;
using testing::run_binary;
using testing::with_small_cache;

TEST(Cli_PhaseLanes, GenerateAnswersAsWithOneLane) {
  const testing::GoldenCheckpoint golden = testing::load_golden(testing::tied_model());
  testing::TemporaryFolder folder;
  std::string file;
  for (const testing::GoldenPrompt& prompt : golden.prompts)
    file +=
        Json{{"prompt_token_ids", prompt.token_ids}, {"max_tokens", prompt.greedy_token_ids.size()}}.dump() +
        "\n";
  testing::write_file(folder / "prompts.jsonl", file);
  const BinaryResult result = testing::generate({"--prompts", (folder / "prompts.jsonl").string(),
                                                 "--temperature", "0", "--ignore-eos", "--format", "jsonl",
                                                 "--phase-lanes", "--max-num-batched-tokens", "7"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const std::vector<Json> lines = json_lines(result.out);
  ASSERT_EQ(lines.size(), golden.prompts.size());
  for (size_t i = 0; i < lines.size(); ++i)
    EXPECT_EQ(lines[i].at("outputs").at(0).at("token_ids"), golden.prompts[i].greedy_token_ids);
}

TEST(Cli_PhaseLanes, BenchCountsTheStepsOfEachLane) {
  testing::TemporaryFolder folder;
  const std::string json = (folder / "result.json").string();
  const BinaryResult result =
      run_binary(with_small_cache({"bench", "throughput", "--model", testing::tied_model(), "--num-requests",
                                   "4", "--min-prompt-len", "3", "--max-prompt-len", "9", "--min-output-len",
                                   "2", "--max-output-len", "5", "--json", json, "--phase-lanes"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json measured = Json::parse(testing::read_file(json)).at("results").at(0);
  EXPECT_GT(measured.at("prefill_steps"), 0);
  EXPECT_GT(measured.at("decode_steps"), 0);
  EXPECT_EQ(measured.at("prefill_steps").get<int64_t>() + measured.at("decode_steps").get<int64_t>(),
            measured.at("steps").get<int64_t>());
}

TEST(Cli_PhaseLanes, WhatDoesNotGoWithThemIsRefusedInOneLine) {
  const std::vector<std::vector<std::string>> cases = {{"--tensor-parallel-size", "2"},
                                                       {"--pipeline-parallel-size", "2"},
                                                       {"--static-batching"},
                                                       {"--kv-role", "consumer"}};
  for (std::vector<std::string> words : cases) {
    const std::string flag = words[0];
    words.insert(words.end(), {"--prompt-token-ids", "5,6,7", "--phase-lanes"});
    const BinaryResult result = testing::generate(words);
    expect_refused(result, "--phase-lanes");
    expect_refused(result, flag);
  }
  expect_refused(run_binary({"serve", "--model", testing::tied_model(), "--device", "cpu", "--disaggregate",
                             "1P1D", "--phase-lanes"}),
                 "--disaggregate and --phase-lanes");
  testing::TemporaryFolder folder;
  expect_refused(
      run_binary(with_small_cache({"plan", "--measure", "--step-times", (folder / "times.json").string(),
                                   "--model", testing::tied_model(), "--phase-lanes"})),
      "--measure and --phase-lanes");
  // Before a model is looked for.
  for (const char* command : {"throughput", "latency"})
    expect_refused(run_binary({"bench", command, "--model", (folder / "none").string(), "--count-experts",
                               "--phase-lanes"}),
                   "--count-experts and --phase-lanes");
}

}  // namespace
}  // namespace ladder

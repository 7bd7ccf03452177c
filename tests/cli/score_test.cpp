// ladder score.
#include <cmath>

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

class Cli_ScoreOnDevice : public testing::OnDevice {};
INSTANTIATE_TEST_SUITE_P(Devices, Cli_ScoreOnDevice, testing::both_devices(),
                         [](const auto& info) { return testing::device_word(info.param); });

TEST_P(Cli_ScoreOnDevice, ScoreWritesOneLinePerTextThenASummary) {
  const testing::GoldenCheckpoint golden = testing::load_golden(testing::tied_model());
  testing::TemporaryFolder folder;
  std::string file;
  for (const auto& prompt : golden.prompts)
    file += Json{{"prompt_token_ids", prompt.token_ids}}.dump() + "\n";
  testing::write_file(folder / "in.jsonl", file);
  const BinaryResult result =
      run_binary(with_small_cache({"score", "--model", testing::tied_model(), "--input",
                                   (folder / "in.jsonl").string(), "--format", "jsonl", "--top", "3"},
                                  GetParam()));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<Json> lines = json_lines(result.out);
  ASSERT_EQ(lines.size(), golden.prompts.size() + 1);
  double sum = 0.0;
  int64_t tokens = 0;
  for (size_t i = 0; i < golden.prompts.size(); ++i) {
    const auto& prompt = golden.prompts[i];
    EXPECT_EQ(lines[i].at("index"), i);
    EXPECT_EQ(lines[i].at("token_ids"), prompt.token_ids);
    const Json& logprobs = lines[i].at("logprobs");
    ASSERT_EQ(logprobs.size(), prompt.token_ids.size());
    EXPECT_TRUE(logprobs[0].is_null());
    EXPECT_TRUE(lines[i].at("top").at(0).is_null());
    for (size_t t = 1; t < logprobs.size(); ++t) {
      sum += logprobs[t].get<double>();
      ++tokens;
      EXPECT_EQ(lines[i].at("top").at(t).size(), 3u);
    }
    // Against the oracle's logits, where the golden file has them for all positions.
    for (size_t p = 0; p < prompt.logit_positions.size(); ++p) {
      const auto position = static_cast<size_t>(prompt.logit_positions[p]);
      if (position + 1 >= prompt.token_ids.size()) continue;
      double total = 0.0;
      for (double logit : prompt.logits[p]) total += std::exp(logit);
      const double expected =
          prompt.logits[p][static_cast<size_t>(prompt.token_ids[position + 1])] - std::log(total);
      EXPECT_NEAR(logprobs[position + 1].get<double>(), expected, 2e-4);
    }
  }
  EXPECT_EQ(lines.back().at("summary").at("tokens"), tokens);
  const double perplexity = std::exp(-sum / static_cast<double>(tokens));
  EXPECT_NEAR(lines.back().at("summary").at("perplexity").get<double>(), perplexity, 1e-6 * perplexity);
}

TEST(Cli_Score, MoreLogprobsThanTheLimitAreRefusedByName) {
  testing::TemporaryFolder folder;
  testing::write_file(folder / "in.jsonl", R"({"prompt_token_ids": [1, 2, 3]})");
  const auto score = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{
        "score",    "--model", testing::tied_model(), "--input", (folder / "in.jsonl").string(),
        "--format", "jsonl"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_binary(with_small_cache(arguments, DeviceType::cpu));
  };
  expect_refused(score({"--top=-1"}), "--max-logprobs");
  expect_refused(score({"--top", "21"}), "--top 21");
  const BinaryResult all = score({"--top=-1", "--max-logprobs=-1"});
  ASSERT_EQ(all.exit_code, 0) << all.err;
  EXPECT_EQ(json_lines(all.out).at(0).at("top").at(1).size(), 131u);
}

TEST_P(Cli_ScoreOnDevice, ATextToScoreMayFillTheModel) {
  testing::TemporaryFolder folder;
  testing::write_file(folder / "full.jsonl", Json{{"prompt_token_ids", std::vector<int>(512, 7)}}.dump());
  testing::write_file(folder / "over.jsonl", Json{{"prompt_token_ids", std::vector<int>(513, 7)}}.dump());
  const auto score = [&](const char* file) {
    return run_binary(with_small_cache(
        {"score", "--model", testing::tied_model(), "--input", (folder / file).string(), "--format", "jsonl"},
        GetParam()));
  };
  const BinaryResult full = score("full.jsonl");
  EXPECT_EQ(full.exit_code, 0) << full.err;
  EXPECT_EQ(json_lines(full.out).at(0).at("logprobs").size(), 512u);
  expect_refused(score("over.jsonl"), "line 1");
}

// The text and one token more fit a step by default.
TEST(Cli_Score, WorksWithoutChunkedPrefillByDefault) {
  const std::string text = Json{{"prompt_token_ids", std::vector<int>(512, 7)}}.dump();
  const std::vector<std::string> score = {"score", "--model", testing::tied_model(), "--input", "-"};
  std::vector<std::string> whole = score;
  whole.push_back("--no-chunked-prefill");
  const BinaryResult chunked = run_binary(with_small_cache(score), text);
  const BinaryResult result = run_binary(with_small_cache(whole), text);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, chunked.out);
}

}  // namespace
}  // namespace ladder

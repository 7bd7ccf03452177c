// A folder whose weights are quantized runs without a flag, on one rank and on several.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/cli/program.h"
#include "tests/support/golden_checkpoint.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::BinaryResult;
using testing::expect_refused;
using testing::json_lines;
using testing::run_binary;

const std::filesystem::path kGolden = testing::source_folder() / "tests/goldens/quantized/ct_w4a16_g128_asym";

BinaryResult generate(const std::filesystem::path& model, const std::vector<int32_t>& token_ids,
                      std::vector<std::string> more) {
  std::vector<std::string> words = {"generate",
                                    "--model=" + model.string(),
                                    "--prompt-token-ids=" + testing::comma_separated(token_ids),
                                    "--temperature=0",
                                    "--ignore-eos",
                                    "--format=jsonl"};
  words.insert(words.end(), more.begin(), more.end());
  return run_binary(testing::with_small_cache(std::move(words)));
}

TEST(Cli_Quantized, AFolderGivesTheOraclesTokensOnAnyRanks) {
  const testing::GoldenPrompt prompt = testing::load_golden(kGolden).prompts.at(0);
  for (const std::vector<std::string>& ranks :
       {std::vector<std::string>{},
        {"--tensor-parallel-size=2"},
        {"--tensor-parallel-size=2", "--distributed-executor-backend=mp"},
        {"--pipeline-parallel-size=2"}}) {
    SCOPED_TRACE(::testing::PrintToString(ranks));
    std::vector<std::string> words = ranks;
    words.push_back(fmt::format("--max-tokens={}", prompt.greedy_token_ids.size()));
    const BinaryResult result = generate(kGolden, prompt.token_ids, words);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(json_lines(result.out).at(0).at("outputs").at(0).at("token_ids"), prompt.greedy_token_ids);
  }
}

// The checkpoint asks for another cache than the engine has: it runs, and one line says so.
TEST(Cli_Quantized, ScalesOfKeysAndValuesThatAreNotUsedAreSaidOnce) {
  const std::filesystem::path golden = kGolden.parent_path() / "ct_w4a16_g32_kv_fp8";
  const testing::GoldenPrompt prompt = testing::load_golden(golden).prompts.at(0);
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{},
        {"--tensor-parallel-size=2", "--distributed-executor-backend=mp"},
        {"--kv-cache-dtype=fp8"}}) {
    SCOPED_TRACE(::testing::PrintToString(flags));
    std::vector<std::string> words = flags;
    words.push_back(fmt::format("--max-tokens={}", prompt.greedy_token_ids.size()));
    const BinaryResult result = generate(golden, prompt.token_ids, words);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    if (flags.empty() || flags[0] != "--kv-cache-dtype=fp8") {
      EXPECT_EQ(json_lines(result.out).at(0).at("outputs").at(0).at("token_ids"), prompt.greedy_token_ids);
    }
    const std::string said = "kv_cache_scheme";
    const size_t first = result.err.find(said);
    EXPECT_NE(first, std::string::npos) << result.err;
    EXPECT_EQ(result.err.find(said, first + 1), std::string::npos) << result.err;
  }
}

TEST(Cli_Quantized, DummyCodesGiveTokensOfSomeKind) {
  const BinaryResult result = generate(kGolden, {3}, {"--load-format=dummy", "--max-tokens=5"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json_lines(result.out).at(0).at("outputs").at(0).at("token_ids").size(), 5);
}

TEST(Cli_Quantized, DummyCodesTakeThePlaceOfStoredOnes) {
  const auto weights = [](const std::string& load_format) {
    const BinaryResult info = run_binary(
        testing::with_small_cache({"info", "--model=" + kGolden.string(), "--load-format=" + load_format}));
    EXPECT_EQ(info.exit_code, 0) << info.err;
    const size_t begin = info.out.find("weights and tables");
    EXPECT_NE(begin, info.out.npos) << info.out;
    return info.out.substr(begin, info.out.find('\n', begin) - begin);
  };
  EXPECT_EQ(weights("dummy"), weights("auto"));
}

TEST(Cli_Quantized, DummyScalesOfActivationsAndATensorThatIsMissingAreOneLine) {
  expect_refused(generate(kGolden.parent_path() / "ct_w8a8_static_tensor", {3}, {"--load-format=dummy"}),
                 "--load-format dummy: activations with a scale that is stored");
  const testing::TemporaryFolder folder;
  std::filesystem::copy_file(kGolden / "config.json", folder / "config.json");
  std::filesystem::copy_file(kGolden.parent_path() / "ct_w8a16_channel" / "model.safetensors",
                             folder / "model.safetensors");
  expect_refused(generate(folder.path(), {3}, {}), "weight_zero_point");
}

}  // namespace
}  // namespace ladder

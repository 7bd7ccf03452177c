// ladder eval.
#include <cmath>

#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::BinaryResult;
using testing::expect_refused;
using testing::Json;
using testing::json_lines;
using testing::run_binary;

std::string ids_of(int seed, int count) {
  std::vector<int> ids;
  for (int i = 0; i < count; ++i) ids.push_back((seed + i * i * 7) % 131);
  return Json{{"prompt_token_ids", ids}}.dump() + "\n";
}

BinaryResult eval(std::vector<std::string> more, const std::string& data) {
  std::vector<std::string> arguments = {"eval",    "--model", testing::tied_model(), "--data", data,
                                        "--dtype", "f32"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_binary(arguments);
}

TEST(Cli_Eval, PerplexityIsThatOfScore) {
  testing::TemporaryFolder folder;
  testing::write_file(folder / "in.jsonl", ids_of(1, 30) + ids_of(2, 77) + ids_of(3, 5));
  const std::string data = (folder / "in.jsonl").string();
  const BinaryResult score = run_binary(testing::with_small_cache(
      {"score", "--model", testing::tied_model(), "--input", data, "--format", "jsonl"}));
  ASSERT_EQ(score.exit_code, 0) << score.err;
  const Json expected = json_lines(score.out).back().at("summary");
  const BinaryResult result = eval({"--format", "jsonl", "--window", "200"}, data);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<Json> lines = json_lines(result.out);
  ASSERT_EQ(lines.size(), 4u);
  const Json& summary = lines.back().at("summary");
  EXPECT_EQ(summary.at("tokens"), expected.at("tokens"));
  EXPECT_EQ(summary.at("clusters"), 3);
  const double perplexity = expected.at("perplexity").get<double>();
  EXPECT_NEAR(summary.at("perplexity").get<double>(), perplexity, 1e-4 * perplexity);
  EXPECT_NEAR(std::exp(summary.at("nll").get<double>()), perplexity, 1e-4 * perplexity);
  EXPECT_FALSE(summary.contains("kl"));
}

TEST(Cli_Eval, AModelAgainstItself) {
  testing::TemporaryFolder folder;
  testing::write_file(folder / "in.jsonl", ids_of(1, 300));
  const std::string data = (folder / "in.jsonl").string();
  const BinaryResult lines =
      eval({"--base", testing::tied_model(), "--window", "100", "--format", "jsonl"}, data);
  ASSERT_EQ(lines.exit_code, 0) << lines.err;
  const Json summary = json_lines(lines.out).back().at("summary");
  EXPECT_EQ(summary.at("kl"), 0.0);
  EXPECT_EQ(summary.at("same_top"), 1.0);
  EXPECT_EQ(summary.at("delta_nll"), 0.0);
  EXPECT_EQ(summary.at("clusters"), 3);  // one document: its windows
  EXPECT_EQ(summary.at("tokens"), 297);
  const BinaryResult table = eval({"--base", testing::tied_model()}, data);
  ASSERT_EQ(table.exit_code, 0) << table.err;
  for (const char* word : {"perplexity", "KL(base || model) x 1000", "same likeliest token, %   100.00"})
    EXPECT_NE(table.out.find(word), std::string::npos) << word << "\n" << table.out;
}

// Keys and values in fewer bits take a model further from itself.
TEST(Cli_Eval, AKvCacheOfCodes) {
  testing::TemporaryFolder folder;
  testing::write_file(folder / "in.jsonl", ids_of(1, 60));
  const auto kl = [&](const std::string& dtype) {
    const BinaryResult result = eval(
        {"--base", testing::tied_model(), "--window", "60", "--format", "jsonl", "--kv-cache-dtype", dtype},
        (folder / "in.jsonl").string());
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const Json summary = json_lines(result.out).back().at("summary");
    EXPECT_EQ(summary.at("kv_cache_dtype"), dtype);
    return summary.at("kl").get<double>();
  };
  EXPECT_EQ(kl("auto"), 0.0);
  const double int8 = kl("int8"), int4 = kl("int4");
  EXPECT_GT(int8, 0.0);
  EXPECT_GT(kl("fp8"), int8);
  EXPECT_GT(int4, 10 * int8);
}

TEST(Cli_Eval, MistakesAreOneLine) {
  testing::TemporaryFolder folder;
  testing::write_file(folder / "in.jsonl", ids_of(1, 30));
  testing::write_file(folder / "short.jsonl", ids_of(1, 1));
  testing::write_file(folder / "text.txt", "a text");
  const std::string data = (folder / "in.jsonl").string();
  expect_refused(eval({}, (folder / "none.jsonl").string()), "none.jsonl");
  expect_refused(eval({}, (folder / "short.jsonl").string()), "two tokens");
  expect_refused(eval({}, (folder / "text.txt").string()), "tokenizer");
  expect_refused(eval({"--joined"}, data), "joined");
  expect_refused(eval({"--window", "1"}, data), "--window");
  expect_refused(eval({"--window", "100000"}, data), "--window 100000");
  expect_refused(eval({"--base", testing::tinyworld()}, data), "vocabulary");
  expect_refused(eval({"--base", (folder / "none").string()}, data), "--base " + (folder / "none").string());
  expect_refused(eval({"--device", "cuda"}, data), "--device cuda");
  expect_refused(eval({"--kernel", "matmul=none"}, data), "--kernel");
  expect_refused(eval({"--kv-cache-dtype", "int2"}, data), "--kv-cache-dtype");
}

}  // namespace
}  // namespace ladder

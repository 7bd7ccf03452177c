// ladder quantize: what it writes is tests/step8_advanced's; here are its flags.
#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::BinaryResult;
using testing::expect_refused;
using testing::Json;
using testing::json_lines;
using testing::run_binary;

BinaryResult quantize(const std::filesystem::path& output, std::vector<std::string> more) {
  std::vector<std::string> arguments = {"quantize", "--model", testing::tinyworld(), "--output",
                                        output.string()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_binary(arguments);
}

std::string qa() {
  return testing::tinyworld() + "/eval/qa.jsonl";
}

TEST(Cli_Quantize, WritesAFolderThatOtherCommandsTake) {
  testing::TemporaryFolder folder;
  const BinaryResult result = quantize(folder / "out", {"--scheme", "W8A16"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("model.layers.7.mlp.down_proj"), std::string::npos) << result.out;
  EXPECT_NE(result.err.find("8 layers; about"), std::string::npos) << result.err;
  const std::string out = (folder / "out").string();
  const BinaryResult eval = run_binary({"eval", "--model", out, "--base", testing::tinyworld(), "--data",
                                        testing::tinyworld() + "/eval/text.jsonl", "--max-documents", "1",
                                        "--dtype", "f32", "--format", "jsonl"});
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  const Json summary = json_lines(eval.out).back().at("summary");
  EXPECT_GT(summary.at("kl").get<double>(), 0);
  EXPECT_LT(summary.at("kl").get<double>(), 1e-3);
  const BinaryResult answer =
      run_binary({"generate", "--model", out, "--prompt", "12 + 34 =", "--temperature", "0", "--max-tokens",
                  "3", "--device", "cpu", "--kv-memory", "4MiB"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_NE(answer.out.find("46"), std::string::npos) << answer.out;
  expect_refused(quantize(folder / "out", {"--scheme", "W8A16"}), "is there already");
}

TEST(Cli_Quantize, CalibratesByARecipe) {
  testing::TemporaryFolder folder;
  testing::write_file(
      folder / "recipe.json",
      R"({"stages": [{"method": "gptq", "scheme": "W4A16", "targets": ["re:.*layers.[01]..*"]}]})");
  const BinaryResult result =
      quantize(folder / "out", {"--recipe", (folder / "recipe.json").string(), "--calibration", qa(),
                                "--num-samples", "4", "--max-seq-len", "128"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("gptq"), std::string::npos) << result.out;
}

// Two tokens ask three of six experts each.
TEST(Cli_Quantize, NamesExpertsThatCalibrationDidNotReach) {
  testing::TemporaryFolder folder;
  const std::string model = (testing::source_folder() / "tests/goldens/qwen2_moe_shared").string();
  testing::write_file(folder / "text.jsonl", R"({"prompt_token_ids": [17, 4]})");
  testing::write_file(
      folder / "recipe.json",
      R"({"stages": [{"method": "gptq", "scheme": {"weights": {"num_bits": 4, "group_size": 4}}}]})");
  const auto out = [&](const std::string& name) { return (folder / name).string(); };
  const BinaryResult result =
      run_binary({"quantize", "--model", model, "--recipe", out("recipe.json"), "--calibration",
                  out("text.jsonl"), "--num-samples", "1", "--output", out("out")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  int64_t unreached = 0;
  std::string first;
  const Json report = Json::parse(testing::read_file(folder / "out" / "quantize_report.json"));
  for (const Json& linear : report.at("linears")) {
    if (!linear.value("unreached", false)) continue;
    EXPECT_EQ(linear.at("method"), "rtn");
    const std::string name = linear.at("name");
    if (unreached++ == 0) first = name;
    const size_t begin = result.out.find(name);
    const std::string row = result.out.substr(begin, result.out.find('\n', begin) - begin);
    EXPECT_NE(row.find("(no token of calibration)"), std::string::npos) << row;
  }
  EXPECT_GT(unreached, 0);
  EXPECT_NE(
      result.out.find("no token of calibration came to " + std::to_string(unreached) + " linears of experts"),
      std::string::npos)
      << result.out;
  EXPECT_NE(result.out.find("magnitude: " + first), std::string::npos) << result.out;
}

TEST(Cli_Quantize, SweepsOverBitsGroupsAndMethods) {
  testing::TemporaryFolder folder;
  const std::string data = testing::tinyworld() + "/eval/text.jsonl";
  const BinaryResult result =
      quantize(folder / "out", {"--sweep", "--bits", "4,8", "--groups", "64", "--methods", "rtn", "--data",
                                data, "--max-documents", "1"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("KL x 1000"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("nan"), std::string::npos) << result.out;  // the error of one document
  const Json rows = Json::parse(testing::read_file(folder / "out" / "sweep.json")).at("rows");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_LT(rows[1].at("kl"), rows[0].at("kl"));
  const auto out = folder / "refused";
  expect_refused(quantize(out, {"--sweep"}), "--data");
  expect_refused(quantize(out, {"--scheme", "W4A16", "--bits", "4"}), "--sweep");
  expect_refused(quantize(out, {"--sweep", "--data", data, "--scheme", "W4A16"}), "--scheme");
  expect_refused(quantize(out, {"--sweep", "--data", data, "--methods", "rtn,smoothquant"}), "smoothquant");
  expect_refused(quantize(out, {"--sweep", "--data", data, "--bits", "1"}), "--bits");
  expect_refused(quantize(out, {"--sweep", "--data", data, "--methods", "gptq"}), "--calibration");
  expect_refused(quantize(out, {"--sweep", "--data", data, "--methods", "rtn", "--groups", "256"}),
                 "groups of 256");
  EXPECT_FALSE(std::filesystem::exists(out));
}

// As a shell completes the name of a folder.
TEST(Cli_Quantize, TheFoldersNameMayEndInASlash) {
  testing::TemporaryFolder folder;
  const BinaryResult other = run_binary({"quantize", "--model", testing::tinyworld(), "--out",
                                         (folder / "zero").string(), "--scheme", "W4A16"});
  ASSERT_EQ(other.exit_code, 0) << other.err;
  EXPECT_TRUE(std::filesystem::exists(folder / "zero" / "config.json"));
  for (const char* name : {"one/", "two/.", "three//"}) {
    const BinaryResult result = quantize(folder.path().string() + "/" + name, {"--scheme", "W4A16"});
    ASSERT_EQ(result.exit_code, 0) << name << ": " << result.err;
    EXPECT_TRUE(std::filesystem::exists(folder.path() / name / "config.json")) << name;
  }
  // Nothing else is left, within or beside.
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
    EXPECT_EQ(entry.path().string().find(".partial"), std::string::npos) << entry.path();
}

TEST(Cli_Quantize, MistakesAreOneLine) {
  testing::TemporaryFolder folder;
  testing::write_file(folder / "recipe.json", R"({"stages": [{"method": "gptq", "scheme": "W4A16"}]})");
  const std::string recipe = (folder / "recipe.json").string();
  const auto out = folder / "out";
  expect_refused(quantize(out, {}), "--scheme");
  expect_refused(quantize(out, {"--scheme", "W4A17"}), "W4A17");
  expect_refused(quantize(out, {"--scheme", "W4A16", "--recipe", recipe}), "--recipe and --scheme");
  expect_refused(quantize(out, {"--recipe", recipe, "--method", "rtn"}), "--method");
  expect_refused(quantize(out, {"--recipe", recipe}), "--calibration");
  expect_refused(quantize(out, {"--scheme", "W4A16", "--calibration", qa()}), "--calibration");
  expect_refused(quantize(out, {"--recipe", (folder / "none.json").string()}), "none.json");
  const BinaryResult few =
      quantize(out, {"--recipe", recipe, "--calibration", qa(), "--num-samples", "9999"});
  expect_refused(few, "9999");
  expect_refused(few, "has 400 texts");
  expect_refused(quantize(out, {"--recipe", recipe, "--calibration", qa(), "--max-seq-len", "4096"}),
                 "--max-seq-len 4096");
  expect_refused(quantize(out, {"--scheme", "W4A16", "--device", "cuda"}), "--device cuda");
  expect_refused(quantize("", {"--scheme", "W4A16"}), "--output: expected a new folder");
  expect_refused(quantize("/", {"--scheme", "W4A16"}), "is there already");
  std::filesystem::create_symlink("nowhere", folder / "link");
  expect_refused(quantize(folder / "link", {"--scheme", "W4A16"}), "is there already");
  testing::write_file(folder / "latin.txt", "caf\xe9");
  expect_refused(quantize(out, {"--recipe", recipe, "--calibration", (folder / "latin.txt").string()}),
                 "UTF-8");
  EXPECT_FALSE(std::filesystem::exists(out));
}

}  // namespace
}  // namespace ladder

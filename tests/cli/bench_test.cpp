// ladder bench: every measurement runs and writes its JSON.
#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::BinaryResult;
using testing::expect_refused;
using testing::Json;
using testing::run_binary;
using testing::with_small_cache;

std::string moe_model() {
  return (testing::source_folder() / "tests/goldens/qwen3_moe_normed").string();
}

class Cli_BenchOnDevice : public testing::OnDevice {};
INSTANTIATE_TEST_SUITE_P(Devices, Cli_BenchOnDevice, testing::both_devices(),
                         [](const auto& info) { return testing::device_word(info.param); });

TEST_P(Cli_BenchOnDevice, BenchPrintsATableAndWritesItsJson) {
  testing::TemporaryFolder folder;
  const std::string json = (folder / "result.json").string();
  const BinaryResult throughput =
      run_binary(with_small_cache({"bench", "throughput", "--model", testing::tied_model(), "--num-requests",
                                   "4", "--min-prompt-len", "3", "--max-prompt-len", "9", "--min-output-len",
                                   "2", "--max-output-len", "5", "--json", json},
                                  GetParam()),
                 {}, "LADDER_COMMIT=0123abc");
  ASSERT_EQ(throughput.exit_code, 0) << throughput.err;
  const Json report = Json::parse(testing::read_file(json));
  EXPECT_EQ(report.at("results").at(0).at("requests"), 4);
  EXPECT_GE(report.at("results").at(0).at("output_tokens"), 8);
  EXPECT_NE(report.at("command").get<std::string>().find("--num-requests 4"), std::string::npos);
  EXPECT_TRUE(report.contains("cpu"));
  EXPECT_EQ(report.at("commit"), "0123abc");
  const bool on_gpu = GetParam() == DeviceType::cuda;
  EXPECT_EQ(report.at("gpu").is_string(), on_gpu);
  EXPECT_EQ(report.at("results").at(0).at("of_streaming_limit").is_number(), on_gpu);
  EXPECT_EQ(throughput.out.find("copy bandwidth") != std::string::npos, on_gpu);

  const BinaryResult latency =
      run_binary(with_small_cache({"bench", "latency", "--model", testing::tied_model(), "--prompt-len", "8",
                                   "--output-len", "4", "--repeat", "2"},
                                  GetParam()));
  EXPECT_EQ(latency.exit_code, 0) << latency.err;
  EXPECT_NE(latency.out.find("run 2"), std::string::npos);

  const BinaryResult progression = run_binary(with_small_cache(
      {"bench", "progression", "--model", testing::tied_model(), "--num-requests", "6", "--shared-prefix-len",
       "32", "--max-prompt-len", "20", "--max-output-len", "12", "--json", json},
      GetParam()));
  ASSERT_EQ(progression.exit_code, 0) << progression.err;
  const Json rungs = Json::parse(testing::read_file(json)).at("results");
  ASSERT_GE(rungs.size(), 6u);
  EXPECT_EQ(rungs.size() > 6u, on_gpu) << "graphs, asynchronous scheduling, dependent launch";
  const auto value = [&](size_t rung, const char* name) { return rungs[rung][name].get<double>(); };
  EXPECT_GT(value(0, "computed_tokens"), 3 * value(1, "computed_tokens"))
      << "every token really computed again";
  EXPECT_LT(value(2, "kv_live_share"), value(3, "kv_live_share"))
      << "static batching reserves for the longest answer";
  EXPECT_LT(value(3, "steps"), value(1, "steps"));
  EXPECT_EQ(value(4, "cached_tokens"), 0);
  for (size_t rung = 5; rung < rungs.size(); ++rung) {
    EXPECT_GT(value(rung, "cached_tokens"), 0);
    EXPECT_EQ(value(rung, "output_tokens"), value(0, "output_tokens"));
  }

  if (on_gpu) {
    const BinaryResult replay =
        run_binary(with_small_cache({"bench", "graph-replay", "--model", testing::tied_model(), "--batch",
                                     "4", "--prompt-len", "5", "--steps", "3", "--json", json},
                                    GetParam()));
    EXPECT_EQ(replay.exit_code, 0) << replay.err;
    EXPECT_GT(Json::parse(testing::read_file(json)).at("results").at(0).at("replay_seconds").get<double>(),
              0.0);
    EXPECT_NE(replay.out.find("graph replay"), std::string::npos) << replay.out;
  } else {
    expect_refused(run_binary(with_small_cache({"bench", "graph-replay", "--model", testing::tied_model()})),
                   "expected a GPU");
  }

  expect_refused(run_binary(with_small_cache(
                     {"bench", "latency", "--model", testing::tied_model(), "--json", "/nowhere/x.json"})),
                 "--json");
  expect_refused(run_binary(with_small_cache(
                     {"bench", "throughput", "--model", testing::tied_model(), "--num-requests", "4"})),
                 "--max-model-len");
}

// A checkpoint of 8 experts of which a token takes 3: one request of 1 prompt token touches 3 in each step's layers; a prompt of
// 30 tokens may touch all 8.
TEST_P(Cli_BenchOnDevice, CountsTheExpertsThatARunTouches) {
  testing::TemporaryFolder folder;
  const std::string json = (folder / "result.json").string();
  const auto bench = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "bench");
    arguments.insert(arguments.end(), {"--model", moe_model(), "--count-experts", "--json", json});
    return run_binary(with_small_cache(arguments, GetParam()));
  };
  const BinaryResult one = bench({"latency", "--prompt-len", "1", "--output-len", "6", "--repeat", "1"});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_NE(one.out.find("touched, mean of its calls: 3.0 of 8"), std::string::npos) << one.out;
  EXPECT_EQ(Json::parse(testing::read_file(json)).at("results").at(0).at("touched_experts"), 3.0);

  const BinaryResult many =
      bench({"throughput", "--num-requests", "4", "--min-prompt-len", "6", "--max-prompt-len", "9",
             "--min-output-len", "2", "--max-output-len", "5"});
  ASSERT_EQ(many.exit_code, 0) << many.err;
  const double touched = Json::parse(testing::read_file(json)).at("results").at(0).at("touched_experts");
  EXPECT_GT(touched, 3.0);
  EXPECT_LE(touched, 8.0);

  expect_refused(run_binary(with_small_cache(
                     {"bench", "latency", "--model", testing::tied_model(), "--count-experts"}, GetParam())),
                 "no experts");
}

TEST(Cli_Bench, CountsExpertsOfOneRankOnly) {
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--tensor-parallel-size", "2"}, {"--data-parallel-size", "2"}}) {
    std::vector<std::string> arguments{"bench", "throughput", "--model", moe_model(), "--count-experts"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    expect_refused(run_binary(with_small_cache(arguments)), "--count-experts");
  }
}

TEST(Cli_BenchBalancers, RefusesNamesThatThereAreNot) {
  testing::expect_refused(run_binary({"bench", "balancers", "--balancer", "round_robin,nearest"}),
                          "--balancer");
}

}  // namespace
}  // namespace ladder

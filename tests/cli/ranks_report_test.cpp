// What `ladder bench` says of several ranks.
#include "cli/bench/ranks_report.h"

#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "tests/support/source_folder.h"

namespace ladder {
namespace {

TEST(Cli_RanksReport, SharesAreOfTheTimeThatIsNotWaited) {
  Measurement m;
  m.seconds = 10;
  m.engine.execute_seconds = 9;
  m.engine.stage_wait_seconds = 1;
  m.engine.communicate_seconds = 2;
  EXPECT_DOUBLE_EQ(communication_share(m.engine), 0.25);
  EXPECT_DOUBLE_EQ(bubble_share(m), 0.2);
  EXPECT_DOUBLE_EQ(communication_share({}), 0.0);
  RunnerConfig config;
  EXPECT_TRUE(describe_shares(config, m).empty());
  config.tensor_parallel_size = config.pipeline_parallel_size = 2;
  ASSERT_EQ(describe_shares(config, m).size(), 2u);
  EXPECT_EQ(describe_shares(config, m)[0].second, "25.0 %");
  EXPECT_EQ(describe_shares(config, m)[1].second, "20.0 %");
  config.device = {DeviceType::cuda, 0};  // where a clock on the host sees nothing of communication
  ASSERT_EQ(describe_shares(config, m).size(), 1u);
  EXPECT_EQ(describe_shares(config, m)[0].second, "20.0 %");
}

// Of a layer 1 / ranks of everything but the norms, whose rows all have; of Llama-3.1-8B with 16 ranks a whole KV head.
TEST(Cli_RanksReport, ARanksShareIsAModelByItself) {
  const DecoderSpec whole = load_decoder_spec(testing::source_folder() / "models" / "llama-3.1-8b");
  const DecoderSpec half = model_of_a_rank(whole, 2);
  const int64_t norms = whole.hidden_size * (2 * whole.num_layers + 1);
  EXPECT_EQ(2 * (half.num_parameters() - norms), whole.num_parameters() - norms);
  EXPECT_EQ(model_of_a_rank(whole, 16).num_kv_heads, 1);
  EXPECT_EQ(describe_communication(2.0, 1.5).second.substr(0, 7), "25.0 %:");

  EngineOptions options;
  options.runner.device = {DeviceType::cuda, 0};
  options.runner.tensor_parallel_size = 2;
  options.makers.executor = nullptr;
  const EngineOptions alone = options_of_a_rank(options);
  EXPECT_EQ(alone.runner.tensor_parallel_size, 1);
  EXPECT_EQ(alone.runner.load_format, LoadFormat::dummy);
  EXPECT_TRUE(alone.makers.executor);
  options.runner.pipeline_parallel_size = 2;
  EXPECT_THROW(options_of_a_rank(options), Error);
  options.runner = {};
  EXPECT_THROW(options_of_a_rank(options), Error);
}

// Qwen3-0.6B has 16 heads, 8 of keys and values of 128 each, 28 layers; in bf16 a token takes 2 * 28 * 8 * 128 * 2 bytes.
TEST(Cli_RanksReport, ACacheShrinksWithTheRanksAsFarAsThereAreHeads) {
  EngineOptions options;
  options.model = testing::source_folder() / "models" / "qwen3-0.6b";
  options.dtype = DType::bf16;
  options.runner.kv_memory = int64_t{4} << 30;
  const DecoderSpec spec = load_decoder_spec(options.model);
  const auto capacities = rank_capacities(options, spec, {int64_t{1} << 36, int64_t{1} << 36});
  ASSERT_EQ(capacities.size(), 4u);
  constexpr int64_t kToken = 2 * 28 * 8 * 128 * 2;
  for (const RankCapacity& one : capacities) {
    EXPECT_EQ(one.refused, "");
    EXPECT_EQ(one.kv_bytes_per_token, kToken / one.ranks);
  }
  EXPECT_LT(capacities[3].weight_bytes, capacities[0].weight_bytes / 4);
  EXPECT_EQ(capacities[0].cached_tokens, (int64_t{4} << 30) / kToken / 16 * 16);
  EXPECT_NE(describe_capacities(capacities).find("tensor-parallel ranks"), std::string::npos);

  options.model = testing::source_folder() / "models" / "tinyworld";
  const DecoderSpec tiny = load_decoder_spec(options.model);
  int num_refused = 0;
  for (const RankCapacity& one : rank_capacities(options, tiny, {int64_t{1} << 36, int64_t{1} << 36}))
    num_refused += !one.refused.empty();
  EXPECT_EQ(num_refused, tiny.num_heads % 8 == 0 ? 0 : 1);
}

}  // namespace
}  // namespace ladder

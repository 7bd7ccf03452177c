// Task 4.2: what the weights take, by how a step reads them. That the sum is what models have is tested where those are
// loaded: real_model_test.cpp, and beside the experts and the quantized formats.
#include "step4_runner/weight_bytes.h"

#include <gtest/gtest.h>

#include "step4_runner/memory.h"
#include "tests/support/golden_checkpoint.h"
#include "tests/support/source_folder.h"

namespace ladder {
namespace {

const std::filesystem::path kGoldens = testing::source_folder() / "tests/goldens";

RunnerConfig config_of(DType dtype, int64_t max_model_len) {
  RunnerConfig config;
  config.dtype = dtype;
  config.batch.max_model_len = max_model_len;
  return config;
}

TEST(Task4_2_WeightBytes, AStepReadsAllButTheRowsThatItLooksUp) {
  int with_experts = 0, with_positions = 0;
  for (const std::string& name : testing::golden_names(kGoldens)) {
    SCOPED_TRACE(name);
    const DecoderSpec spec = load_decoder_spec(kGoldens / name);
    const WeightBytes bytes = weight_bytes(spec, config_of(DType::bf16, 32), {});
    const int64_t table = spec.vocab_size * spec.embedding_width();
    const int64_t positions = spec.parameters_before_layers() - spec.projection_parameters();
    const int64_t experts = spec.num_expert_layers() * spec.experts.num_experts * 3 * spec.hidden_size *
                            spec.experts.intermediate_size;
    const int64_t rows = (spec.tie_word_embeddings ? 0 : table) + positions;
    EXPECT_EQ(bytes.experts, experts * 2);
    EXPECT_EQ(bytes.looked_up, rows * 2 + 32 * spec.rope.rotary_dim * 4);
    EXPECT_EQ(bytes.whole, (spec.num_parameters() - experts - rows) * 2);
    with_experts += experts > 0 ? 1 : 0;
    with_positions += positions > 0 ? 1 : 0;
  }
  EXPECT_GT(with_experts, 0);
  EXPECT_GT(with_positions, 0);
}

// A tied table is where rows are looked up and where the head is.
TEST(Task4_2_WeightBytes, TheFirstStageLooksUpAndTheLastReadsTheHead) {
  for (const char* name : {"qwen3_tied", "qwen3_untied"}) {
    SCOPED_TRACE(name);
    const DecoderSpec spec = load_decoder_spec(kGoldens / name);
    RunnerConfig config = config_of(DType::f32, 1);
    const WeightBytes whole = weight_bytes(spec, config, {});
    config.pipeline_parallel_size = 2;
    const WeightBytes first = weight_bytes(spec, config, {0, 0}), last = weight_bytes(spec, config, {0, 1});
    const int64_t table = spec.vocab_size * spec.embedding_width() * 4, rope = spec.rope.rotary_dim * 4;
    EXPECT_EQ(first.whole + last.whole, whole.whole);
    EXPECT_EQ(first.looked_up, table + rope);
    EXPECT_EQ(last.looked_up, rope);
  }
}

// What an expert leaves behind is as wide as the expert on a rank that has it whole.
TEST(Task4_2_Memory, AWholeExpertIsAsWideAsOnOneRank) {
  DecoderSpec spec = load_decoder_spec(kGoldens / "qwen3_moe_normed");
  spec.experts.intermediate_size = 1 << 14;  // wider than all else in a step
  RunnerConfig config = config_of(DType::bf16, 32);
  config.batch.max_num_batched_tokens = 64;
  const auto activations = [&](int tensor_ranks, bool whole) {
    config.tensor_parallel_size = tensor_ranks;
    config.expert_parallel = whole;
    return predict_rank_memory(spec, config, {}).activations;
  };
  EXPECT_EQ(activations(2, true), activations(2, false) + 64 * 3 * (1 << 13) * 2);
  EXPECT_EQ(activations(2, true), activations(1, false));
}

}  // namespace
}  // namespace ladder

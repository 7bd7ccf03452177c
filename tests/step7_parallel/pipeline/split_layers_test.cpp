#include "step7_parallel/pipeline/split_layers.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step2_model/model.h"
#include "tests/support/numerics.h"
#include "tests/support/source_folder.h"

namespace ladder {
namespace {

DecoderSpec spec_of(const char* model) {
  return load_decoder_spec(testing::source_folder() / "models" / model);
}

int64_t most_expensive(const DecoderSpec& spec, const std::vector<int64_t>& ends) {
  const LayerCosts costs = layer_costs(spec);
  int64_t most = 0, begin = 0;
  for (const int64_t end : ends) {
    most = std::max(most, (end - begin) * costs.layer + (end == spec.num_layers ? costs.head : 0));
    begin = end;
  }
  return most;
}

TEST(Task7_5_SplitLayers, TheLastStageHasFewerLayersForItsHead) {
  EXPECT_EQ(split_layers(spec_of("llama-3.1-8b"), 2), (std::vector<int64_t>{17, 32}));
  EXPECT_EQ(split_layers(spec_of("qwen3-8b"), 2), (std::vector<int64_t>{20, 36}));
  // Of 0.6 billion parameters the tied head is as much as ten layers: 19 | 9 + 9.9.
  EXPECT_EQ(split_layers(spec_of("qwen3-0.6b"), 2), (std::vector<int64_t>{19, 28}));
}

TEST(Task7_5_SplitLayers, CountsTheParametersOfEveryProduct) {
  DecoderSpec spec;
  spec.hidden_size = 10;
  spec.num_heads = 3;
  spec.num_kv_heads = 1;
  spec.head_dim = 4;  // q and o of 10 x 12, k and v of 10 x 4
  spec.intermediate_size = 7;
  spec.vocab_size = 11;
  EXPECT_EQ(layer_costs(spec).layer, 2 * 120 + 2 * 40 + 3 * 70);
  EXPECT_EQ(layer_costs(spec).head, 110);
  spec.tie_word_embeddings = true;
  EXPECT_EQ(layer_costs(spec).head, 110) << "a tied head is read all the same";
}

TEST(SplitLayers, OfExpertsThoseCountThatATokenMeets) {
  DecoderSpec spec = spec_of("qwen3-30b-a3b");
  const int64_t attention = 2048 * (2 * 4096 + 2 * 512);
  EXPECT_EQ(layer_costs(spec).layer, attention + 3 * 2048 * 8 * 768);
  spec.experts.layers.assign(48, false);
  for (size_t layer = 0; layer < 12; ++layer) spec.experts.layers[layer] = true;  // a quarter
  spec.experts.shared_intermediate_size = 256;
  EXPECT_EQ(layer_costs(spec).layer, attention + 3 * 2048 * (8 * 768 + 256 + 3 * 6144) / 4);
}

TEST(Task7_5_SplitLayers, NoOtherSplitHasACheaperSlowestStage) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 300; ++round) {
    DecoderSpec spec;
    spec.num_layers = random.integer(1, 12);
    spec.hidden_size = 1;
    spec.intermediate_size = random.integer(1, 5);
    spec.vocab_size = random.integer(1, 60);
    const int stages = static_cast<int>(random.integer(1, std::min<int64_t>(spec.num_layers, 5)));
    const std::vector<int64_t> ends = split_layers(spec, stages);
    ASSERT_EQ(std::ssize(ends), stages);
    ASSERT_EQ(ends.back(), spec.num_layers);
    ASSERT_GT(ends.front(), 0);
    for (size_t i = 1; i < ends.size(); ++i) ASSERT_GT(ends[i], ends[i - 1]) << "an empty stage";
    // Every choice of `stages - 1` borders.
    std::vector<bool> border(static_cast<size_t>(spec.num_layers - 1), false);
    std::fill(border.end() - (stages - 1), border.end(), true);
    do {
      std::vector<int64_t> other;
      for (size_t i = 0; i < border.size(); ++i)
        if (border[i]) other.push_back(static_cast<int64_t>(i) + 1);
      other.push_back(spec.num_layers);
      ASSERT_GE(most_expensive(spec, other), most_expensive(spec, ends))
          << spec.num_layers << " layers, " << stages << " stages: " << ::testing::PrintToString(ends)
          << " and " << ::testing::PrintToString(other);
    } while (std::next_permutation(border.begin(), border.end()));
  }
}

TEST(Task7_5_SplitLayers, WhatIsLeftOverIsInTheMiddle) {
  DecoderSpec spec;
  spec.hidden_size = spec.intermediate_size = spec.vocab_size = 1;
  spec.num_layers = 10;  // the head is a third of a layer: 3 | 4 | 3 + 1/3
  EXPECT_EQ(split_layers(spec, 3), (std::vector<int64_t>{3, 7, 10}));
  EXPECT_EQ(split_layers(spec, 10), (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(split_layers(spec, 1), (std::vector<int64_t>{10}));
}

TEST(Task7_5_SplitLayers, TellsHowEvenASplitIs) {
  DecoderSpec spec;
  spec.hidden_size = spec.intermediate_size = 1;
  spec.vocab_size = 3;  // the head is a layer: 2 | 1 + 1 of 3 layers
  spec.num_layers = 3;
  EXPECT_DOUBLE_EQ(imbalance(spec, {2, 3}), 1.0);
  EXPECT_DOUBLE_EQ(imbalance(spec, {1, 3}), 1.5);
}

TEST(Task7_5_SplitLayers, MoreStagesThanLayersAreAnError) {
  DecoderSpec spec;
  spec.num_layers = 2;
  EXPECT_THROW(split_layers(spec, 3), Error);
  EXPECT_THROW(split_layers(spec, 0), Error);
}

}  // namespace
}  // namespace ladder

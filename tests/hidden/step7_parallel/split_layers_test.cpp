// Task 7.5: decoders of random shapes against every split there is.
#include "step7_parallel/pipeline/split_layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "step1_layers/core/error.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

DecoderSpec random_spec(testing::Random& random) {
  DecoderSpec spec;
  spec.num_layers = random.integer(1, 11);
  spec.hidden_size = random.integer(1, 9);
  spec.num_heads = random.integer(1, 6);
  spec.num_kv_heads = random.integer(1, spec.num_heads);
  spec.head_dim = random.integer(1, 5);
  spec.intermediate_size = random.integer(1, 9);
  spec.vocab_size = random.integer(1, 700);
  spec.tie_word_embeddings = random.integer(0, 1) == 1;
  return spec;
}

int64_t layer_of(const DecoderSpec& spec) {
  const int64_t attention = 2 * (spec.num_heads + spec.num_kv_heads) * spec.head_dim;
  return spec.hidden_size * (attention + 3 * spec.intermediate_size);
}

int64_t slowest(const DecoderSpec& spec, const std::vector<int64_t>& counts) {
  const int64_t others = *std::max_element(counts.begin(), counts.end()) * layer_of(spec);
  return std::max(others, counts.back() * layer_of(spec) + spec.hidden_size * spec.vocab_size);
}

// Every way to give `layers` layers to `stages` stages, none of them empty.
void every_split(int64_t layers, int stages, std::vector<int64_t>& counts,
                 const std::function<void(const std::vector<int64_t>&)>& fn) {
  if (std::ssize(counts) == stages) {
    if (layers == 0) fn(counts);
    return;
  }
  for (int64_t count = 1; count <= layers; ++count) {
    counts.push_back(count);
    every_split(layers - count, stages, counts, fn);
    counts.pop_back();
  }
}

TEST(Hidden7_5_SplitLayers, IsTheCheapestOfAllAndOfTheseTheStated) {
  const uint64_t seed = testing::fresh_seed();
  testing::Random random(seed);
  for (int round = 0; round < 300; ++round) {
    const DecoderSpec spec = random_spec(random);
    const int stages = static_cast<int>(random.integer(1, std::min<int64_t>(spec.num_layers, 5)));
    SCOPED_TRACE(::testing::Message()
                 << spec.num_layers << " layers of " << layer_of(spec) << ", a head of "
                 << spec.hidden_size * spec.vocab_size << ", " << stages << " stages, seed " << seed);
    EXPECT_EQ(layer_costs(spec).layer, layer_of(spec));
    EXPECT_EQ(layer_costs(spec).head, spec.hidden_size * spec.vocab_size);
    const std::vector<int64_t> ends = split_layers(spec, stages);
    ASSERT_EQ(std::ssize(ends), stages);
    ASSERT_EQ(ends.back(), spec.num_layers);
    std::vector<int64_t> counts = {ends[0]}, scratch;
    for (size_t i = 1; i < ends.size(); ++i) counts.push_back(ends[i] - ends[i - 1]);
    ASSERT_GE(*std::min_element(counts.begin(), counts.end()), 1);
    int64_t least = slowest(spec, counts), last = counts.back();
    every_split(spec.num_layers, stages, scratch, [&](const std::vector<int64_t>& other) {
      const int64_t cost = slowest(spec, other);
      if (cost < least || (cost == least && other.back() > last)) least = cost, last = other.back();
    });
    ASSERT_EQ(slowest(spec, counts), least) << ::testing::PrintToString(counts);
    ASSERT_EQ(counts.back(), last) << ::testing::PrintToString(counts);
    ASSERT_TRUE(std::is_sorted(counts.begin(), counts.end() - 1)) << ::testing::PrintToString(counts);
    if (stages > 1) {
      ASSERT_LE(counts[counts.size() - 2] - counts[0], 1) << ::testing::PrintToString(counts);
    }
    const double mean =
        static_cast<double>(spec.num_layers * layer_of(spec) + spec.hidden_size * spec.vocab_size) /
        static_cast<double>(stages);
    ASSERT_DOUBLE_EQ(imbalance(spec, ends), static_cast<double>(slowest(spec, counts)) / mean);
  }
}

TEST(Hidden7_5_SplitLayers, RefusesStagesThatWouldBeEmpty) {
  testing::Random random(testing::fresh_seed());
  for (int round = 0; round < 20; ++round) {
    const DecoderSpec spec = random_spec(random);
    EXPECT_THROW(split_layers(spec, static_cast<int>(spec.num_layers + random.integer(1, 9))), Error);
    EXPECT_THROW(split_layers(spec, static_cast<int>(-random.integer(0, 3))), Error);
  }
}

}  // namespace
}  // namespace ladder

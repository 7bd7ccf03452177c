// The examples that the chapter works by hand, given to the operators.
// tests/tools/chapter1_examples_test.py checks that the chapter holds the same numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "step1_layers/attention/attention.h"
#include "step1_layers/attention/paged_attention.h"
#include "step1_layers/attention/store_kv.h"
#include "step1_layers/rotary/rope.h"
#include "step1_layers/sampling/logits_filters.h"
#include "step1_layers/sampling/penalties.h"
#include "step1_layers/sampling/philox.h"
#include "step1_layers/sampling/sample.h"

namespace ladder {
namespace {

template <class T>
Tensor tensor(const std::vector<T>& values, const Shape& shape) {
  return Tensor::from<T>(values, shape);
}

std::vector<float> values_of(const Tensor& t) {
  const Tensor copy = t.clone();
  return {copy.data<float>(), copy.data<float>() + copy.numel()};
}

void expect_near(const Tensor& actual, const std::vector<float>& expected, float slack) {
  const std::vector<float> values = values_of(actual);
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], slack) << "value " << i;
}

class Chapter : public ::testing::Test {
 protected:
  // On the loops, as the chapter has it.
  Chapter() {
    ctx_.arena = &arena_;
    for (const char* op : {"apply_penalties", "causal_attention", "mask_min_p", "mask_top_k", "mask_top_p",
                           "paged_attention", "rotary_embedding", "sample", "store_kv"})
      ctx_.kernels[op] = "loop";
  }

  Arena arena_;
  OpContext ctx_;
};

using Task1_6_ChapterExample = Chapter;
using Task1_7_ChapterExample = Chapter;
using Task1_8_ChapterExample = Chapter;

// Three tokens, one head of four values, values of two.
Tensor queries() {
  return tensor<float>({2, 0, 0, 1, 0, 2, 0, 1, 1, 1, 1, 1}, {3, 1, 4});
}
Tensor keys() {
  return tensor<float>({1, 0, 1, 0, 0, 2, 0, 0, 1, 1, 0, 2}, {3, 1, 4});
}
Tensor values() {
  return tensor<float>({10, 0, 0, 10, 4, 8}, {3, 1, 2});
}
const std::vector<float> kMixed{10.00f, 0.00f, 1.19f, 8.81f, 4.42f, 6.73f};

TEST_F(Task1_7_ChapterExample, ThreeTokensAttendToThemselvesAndToThoseBefore) {
  const Tensor out = Tensor::zeros({3, 1, 2}, DType::f32);
  causal_attention(ctx_, queries(), keys(), values(), 0.5, out);
  expect_near(out, kMixed, 0.005f);
}

TEST_F(Task1_7_ChapterExample, TheLastTokenReadsTheOthersFromTheirBlocks) {
  // Blocks of two slots; the sequence has blocks 3 and 0, so positions 0, 1, 2 are slots 6, 7, 0.
  const KvCacheView cache{Tensor::zeros({4, 2, 1, 4}, DType::f32), Tensor::zeros({4, 2, 1, 2}, DType::f32)};
  store_kv(ctx_, keys(), values(), tensor<int64_t>({6, 7, 0}, {3}), cache);
  AttentionMetadata metadata;
  metadata.query_start_loc = tensor<int32_t>({0, 1}, {2});
  metadata.seq_lens = tensor<int32_t>({3}, {1});
  metadata.block_tables = tensor<int32_t>({3, 0}, {1, 2});
  metadata.num_seqs = metadata.num_tokens = metadata.max_query_len = 1;
  metadata.max_seq_len = 3;
  const Tensor out = Tensor::zeros({1, 1, 2}, DType::f32);
  paged_attention(ctx_, queries().narrow(0, 2, 1), cache, metadata, 0.5, out);
  expect_near(out, {kMixed[4], kMixed[5]}, 0.005f);
}

TEST_F(Task1_7_ChapterExample, FourScoresMixFourValues) {
  // Keys of one value and a query of 1: the scores are the keys.
  const Tensor out = Tensor::zeros({1, 1, 1}, DType::f32);
  causal_attention(ctx_, tensor<float>({1}, {1, 1, 1}), tensor<float>({1, 3, 2, 4}, {4, 1, 1}),
                   tensor<float>({10, 20, 30, 40}, {4, 1, 1}), 1.0, out);
  expect_near(out, {33.43f}, 0.005f);
}

TEST_F(Task1_6_ChapterExample, TwoPairsTurnByTheirPosition) {
  const Tensor table = make_rope_table({.theta = 10000, .rotary_dim = 4}, 3);
  const Tensor q = tensor<float>({1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}, {3, 1, 4}), k = q.clone();
  rotary_embedding(ctx_, tensor<int32_t>({0, 1, 2}, {3}), q, k, table);
  const std::vector<float> turned{1.000f, 2.000f, 3.000f,  4.000f, -1.984f, 1.960f,
                                  2.462f, 4.020f, -3.144f, 1.920f, -0.339f, 4.039f};
  expect_near(q, turned, 0.0005f);
  expect_near(k, turned, 0.0005f);
}

TEST_F(Task1_8_ChapterExample, PenaltiesOfOneRow) {
  const Tensor logits = tensor<float>({2, 1, -1, 0.5f}, {1, 4});
  apply_penalties(ctx_, {.logits = logits,
                         .row_start = tensor<int32_t>({0, 2}, {2}),
                         .token_ids = tensor<int32_t>({0, 2}, {2}),
                         .output_counts = tensor<int32_t>({2, 0}, {2}),
                         .repetition = tensor<float>({1.25f}, {1}),
                         .presence = tensor<float>({0.2f}, {1}),
                         .frequency = tensor<float>({0.1f}, {1})});
  expect_near(logits, {1.20f, 1.00f, -1.25f, 0.50f}, 1e-5f);
}

// Which tokens of p = 0.40, 0.20, 0.20, 0.12, 0.08 a filter leaves.
template <class T>
std::vector<int> kept(const OpContext& ctx, void (*filter)(const OpContext&, const Tensor&, const Tensor&),
                      T value) {
  std::vector<float> logits;
  for (float p : {0.40f, 0.20f, 0.20f, 0.12f, 0.08f}) logits.push_back(std::log(p));
  const Tensor row = tensor(logits, {1, 5});
  filter(ctx, row, tensor<T>({value}, {1}));
  std::vector<int> result;
  for (int i = 0; i < 5; ++i)
    if (row.at<float>({0, i}) > -INFINITY) result.push_back(i);
  return result;
}

TEST_F(Task1_8_ChapterExample, FiltersOfOneRow) {
  EXPECT_EQ(kept(ctx_, mask_min_p, 0.4f), (std::vector{0, 1, 2}));
  EXPECT_EQ(kept(ctx_, mask_top_k, int32_t{2}), (std::vector{0, 1, 2}));
  EXPECT_EQ(kept(ctx_, mask_top_p, 0.55f), (std::vector{0, 1}));
}

TEST_F(Task1_8_ChapterExample, NoiseOfFourTokens) {
  constexpr float kUniform[] = {0.8167f, 0.1168f, 0.6561f, 0.7652f};
  for (uint32_t token = 0; token < 4; ++token)
    EXPECT_NEAR(sampling_uniform(3, 0, token), kUniform[token], 5e-5) << "token " << token;
  const Tensor ids = Tensor::zeros({1}, DType::i32);
  sample(ctx_, {.logits = tensor<float>({2.0f, 1.5f, 0.0f, -1.0f}, {1, 4}),
                .temperature = tensor<float>({1}, {1}),
                .seeds = tensor<int64_t>({3}, {1}),
                .output_index = tensor<int64_t>({0}, {1}),
                .ids = ids});
  EXPECT_EQ(ids.at<int32_t>({0}), 1);
}

}  // namespace
}  // namespace ladder

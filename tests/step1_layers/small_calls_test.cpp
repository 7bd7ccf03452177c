// One small call of the rungs of the ladders whose other tests are too large, or do not reach every rung in every
// run, for a tool that follows every access to memory (tools/gpu_check.sh).
#include <gtest/gtest.h>

#include <numeric>

#include "step1_layers/linear/matmul.h"
#include "step1_layers/sampling/draw/draw.h"
#include "step1_layers/sampling/softmax.h"
#include "step1_layers/sampling/top_logprobs.h"
#include "tests/step1_layers/attention_scene.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using namespace ladder::testing;

RUNG_TEST(Task1_4_Matmul, OneSmallCall, "matmul", matmul_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (DType dtype : {DType::f32, DType::bf16})
    for (const auto& [m, k] : {std::pair<int64_t, int64_t>{1, 264}, {5, 264}, {5, 1032}, {40, 264}}) {
      const int64_t n = 136;
      MatmulArgs args{random.exact({m, k}, dtype), random.exact({n, k}, dtype), Tensor(),
                      poisoned({m, n}, DType::f32)};
      const auto x = to_double(args.x), weight = to_double(args.weight);
      std::vector<double> expected;
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j)
          expected.push_back(
              std::inner_product(x.begin() + i * k, x.begin() + (i + 1) * k, weight.begin() + j * k, 0.0));
      if (!can_run_rung(rung, ctx, args)) continue;
      run_rung(rung, ctx, args);
      EXPECT_EQ(to_double(args.out), expected) << m << " rows";
    }
}

// Decoding rows alone, where sequences lie in several tiles of keys and parts of them; then with a chunk.
RUNG_TEST(Task1_7_PagedAttention, OneSmallCall, "paged_attention", paged_attention_variants()) {
  int served = 0;
  for (const HeadShape& shape : {HeadShape{4, 2, 64, 64}, {8, 1, 128, 128}, {2, 1, 256, 256}})
    for (bool chunk : {false, true}) {
      Random random;
      SCOPED_TRACE(random.describe() + " dim " + std::to_string(shape.k_dim) + (chunk ? ", chunk" : ""));
      std::vector<SequenceData> data;
      for (int64_t length : {1, 70, 200}) data.push_back(random_sequence(random, length, shape, DType::bf16));
      std::vector<Part> parts;
      for (const SequenceData& one : data) parts.push_back({&one, one.length() - 1, one.length()});
      if (chunk) parts[1].begin = 33;
      const AttentionInput input = lay_out(OpContext{}, random, parts, 16);
      const double scale = 1 / std::sqrt(static_cast<double>(shape.k_dim));
      const Attended result = poisoned_output(input);
      const PagedAttentionArgs args{input.q, input.cache, input.metadata, scale, result.out, result.lse};
      if (!can_run_rung(rung, ctx, args)) continue;
      ++served;
      run_rung(rung, ctx, args);
      int64_t row = 0;
      for (const Part& part : parts) {
        const int64_t rows = part.end - part.begin;
        const Reference expected = attention_reference(*part.data, part.begin, part.end, scale);
        EXPECT_TRUE(close_to(result.out.narrow(0, row, rows), expected.out));
        row += rows;
      }
    }
  EXPECT_GT(served, 0) << "it took none of them";
}

// Top-k leaves one token, so the noise cannot matter.
RUNG_TEST(Task1_8_Draw, OneSmallCall, "draw", draw_variants()) {
  const int64_t rows = 2, vocab = 4099;
  Tensor logits = Tensor::zeros({rows, vocab}, DType::f32);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < 20; ++i) logits.at<float>({row, 1000 + i + row}) = static_cast<float>(40 - i);
  const auto column = [&]<class T>(std::vector<T> values) { return Tensor::from<T>(values, {rows}); };
  for (float top_p : {0.5f, 1.0f}) {
    DrawArgs args;
    args.logits = logits.clone();
    args.temperature = column(std::vector<float>{1, 1});
    args.top_k = column(std::vector<int32_t>{1, 1});
    args.top_p = column(std::vector<float>{top_p, top_p});
    args.seeds = column(std::vector<int64_t>{1, 2});
    args.output_index = column(std::vector<int64_t>{3, 4});
    args.ids = poisoned({rows}, DType::i32);
    if (!can_run_rung(rung, ctx, args)) continue;
    run_rung(rung, ctx, args);
    for (int32_t row : {0, 1}) EXPECT_EQ(args.ids.at<int32_t>({row}), 1000 + row);
  }
}

RUNG_TEST(Task1_8_Softmax, OneSmallCall, "softmax", softmax_variants()) {
  const int64_t rows = 2, vocab = 4096;  // equal logits: the answer is exact
  const SoftmaxArgs args{Tensor::zeros({rows, vocab}, DType::f32), poisoned({rows, vocab}, DType::f32)};
  if (!can_run_rung(rung, ctx, args)) return;
  run_rung(rung, ctx, args);
  for (double value : to_double(args.out)) ASSERT_EQ(value, 1.0 / vocab);
}

RUNG_TEST(Task1_8_TopLogprobs, OneSmallCall, "top_logprobs", top_logprobs_variants()) {
  const int64_t rows = 2, vocab = 4099, k = 5;
  Tensor logits = Tensor::zeros({rows, vocab}, DType::f32);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < k; ++i) logits.at<float>({row, 4000 - 700 * i}) = static_cast<float>(90 - i);
  const TopLogprobsArgs args{logits, Tensor::zeros({rows}, DType::i32), poisoned({rows}, DType::f32),
                             poisoned({rows, k}, DType::i32), poisoned({rows, k}, DType::f32)};
  if (!can_run_rung(rung, ctx, args)) return;
  run_rung(rung, ctx, args);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < k; ++i) EXPECT_EQ(args.top_ids.at<int32_t>({row, i}), 4000 - 700 * i);
}

}  // namespace
}  // namespace ladder

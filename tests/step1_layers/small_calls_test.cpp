// One small call of every rung of the ladders whose other tests are too large for a tool that follows every
// access to shared memory (tools/gpu_check.sh, racecheck). Inputs are exact, so the answer must be equal.
#include <gtest/gtest.h>

#include <numeric>

#include "step1_layers/linear/matmul.h"
#include "step1_layers/sampling/draw.h"
#include "step1_layers/sampling/softmax.h"
#include "step1_layers/sampling/top_logprobs.h"
#include "tests/support/devices.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace ladder::testing;

TEST(Task1_4_Matmul, OneSmallCallOfEveryRung) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t m : {1, 5, 40}) {
      const int64_t n = 136, k = 264;
      MatmulArgs args{random.exact({m, k}, dtype), random.exact({n, k}, dtype), Tensor(),
                      poisoned({m, n}, DType::f32)};
      const auto x = to_double(args.x), weight = to_double(args.weight);
      std::vector<double> expected;
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j)
          expected.push_back(
              std::inner_product(x.begin() + i * k, x.begin() + (i + 1) * k, weight.begin() + j * k, 0.0));
      for (const auto& rung : matmul_variants()) {
        if (!can_run_rung(rung, OpContext{}, args)) continue;
        args.out.fill_bytes(0xff);
        run_rung(rung, OpContext{}, args);
        EXPECT_EQ(to_double(args.out), expected) << rung.name << ", " << m << " rows";
      }
    }
}

// Top-k leaves one token, so the noise cannot matter.
TEST(Task1_8_Draw, OneSmallCallOfEveryRung) {
  const int64_t rows = 2, vocab = 4099;
  Tensor logits = Tensor::zeros({rows, vocab}, DType::f32);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < 20; ++i) logits.at<float>({row, 1000 + i + row}) = static_cast<float>(40 - i);
  const auto column = [&]<class T>(std::vector<T> values) { return Tensor::from<T>(values, {rows}); };
  Arena arena;
  OpContext ctx;
  ctx.arena = &arena;
  for (float top_p : {0.5f, 1.0f})
    for (const auto& rung : draw_variants()) {
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
      for (int32_t row : {0, 1}) EXPECT_EQ(args.ids.at<int32_t>({row}), 1000 + row) << rung.name;
    }
}

TEST(Task1_8_Softmax, OneSmallCallOfEveryRung) {
  const int64_t rows = 2, vocab = 4096;  // equal logits: the answer is exact
  const SoftmaxArgs args{Tensor::zeros({rows, vocab}, DType::f32), poisoned({rows, vocab}, DType::f32)};
  for (const auto& rung : softmax_variants()) {
    if (!can_run_rung(rung, OpContext{}, args)) continue;
    args.out.fill_bytes(0xff);
    run_rung(rung, OpContext{}, args);
    for (double value : to_double(args.out)) ASSERT_EQ(value, 1.0 / vocab) << rung.name;
  }
}

TEST(Task1_8_TopLogprobs, OneSmallCallOfEveryRung) {
  const int64_t rows = 2, vocab = 4099, k = 5;
  Tensor logits = Tensor::zeros({rows, vocab}, DType::f32);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < k; ++i) logits.at<float>({row, 4000 - 700 * i}) = static_cast<float>(90 - i);
  const TopLogprobsArgs args{logits, Tensor::zeros({rows}, DType::i32), poisoned({rows}, DType::f32),
                             poisoned({rows, k}, DType::i32), poisoned({rows, k}, DType::f32)};
  Arena arena;
  OpContext ctx;
  ctx.arena = &arena;
  for (const auto& rung : top_logprobs_variants()) {
    if (!can_run_rung(rung, ctx, args)) continue;
    args.top_ids.fill_bytes(0xff);
    run_rung(rung, ctx, args);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = 0; i < k; ++i)
        EXPECT_EQ(args.top_ids.at<int32_t>({row, i}), 4000 - 700 * i) << rung.name;
  }
}

}  // namespace
}  // namespace ladder

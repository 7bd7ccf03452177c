#include "step8_advanced/quantization/algorithms/smoothquant.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/algorithms/fold_scales.h"
#include "step8_advanced/quantization/numbers/grid.h"
#include "tests/step8_advanced/quantization/algorithms/layer_problem.h"

namespace ladder {
namespace {

using testing::error_of;
using testing::Random;

// A norm's output and two linears that take it.
struct Block {
  Tensor normed, gain, bias;
  std::array<Tensor, 2> linears;
  bool gain_plus_one = false;

  explicit Block(uint64_t seed, bool plus_one = false, bool with_bias = false) : gain_plus_one(plus_one) {
    Random random(seed);
    normed = random.normal({50, 32}, DType::f32);
    gain = random.normal({32}, DType::f32, 0.3);
    if (with_bias) bias = random.normal({32}, DType::f32);
    linears = {random.normal({8, 32}, DType::f32, 0.1), random.normal({5, 32}, DType::f32, 0.1)};
  }
  NormBefore norm() const { return {.gain = gain, .bias = bias, .gain_plus_one = gain_plus_one}; }
  Tensor x() const {
    const Tensor out = normed.clone();
    for (int64_t i = 0; i < out.numel(); ++i) {
      const float by = gain.data<float>()[i % 32] + (gain_plus_one ? 1.0f : 0.0f);
      out.data<float>()[i] = out.data<float>()[i] * by + (bias.defined() ? bias.data<float>()[i % 32] : 0.0f);
    }
    return out;
  }
  Tensor max_abs_x() const {
    Hessian hessian(32, "block");
    hessian.add(x());
    return hessian.max_abs();
  }
  Tensor output(size_t linear) const {
    const Tensor out = Tensor::empty({50, linears[linear].dim(0)}, DType::f32);
    OpContext ctx;
    ctx.batch_invariant = true;
    matmul(ctx, x(), linears[linear], Tensor(), out);
    return out;
  }
};

Tensor powers_of_two(uint64_t seed, int64_t count) {
  Random random(seed);
  const Tensor scales = Tensor::empty({count}, DType::f32);
  for (int64_t i = 0; i < count; ++i)
    scales.data<float>()[i] = std::ldexp(1.0f, static_cast<int>(random.integer(-4, 4)));
  return scales;
}

TEST(Task8_3_FoldScales, PowersOfTwoLeaveEveryBitOfTheOutputs) {
  for (const bool with_bias : {false, true}) {
    const Block before(1, false, with_bias), after(1, false, with_bias);
    const Tensor scales = powers_of_two(2, 32);
    fold_scales(after.norm(), after.linears, scales, "block");
    for (const size_t linear : {0, 1})
      EXPECT_TRUE(testing::bitwise_equal(after.output(linear), before.output(linear))) << "linear " << linear;
    EXPECT_EQ(after.linears[1].at<float>({3, 7}),
              before.linears[1].at<float>({3, 7}) * scales.at<float>({7}));
  }
}

// Gemma's norms: 1 + gain is what multiplies.
TEST(Task8_3_FoldScales, OfANormThatAddsOneTheSumIsDivided) {
  const Block before(3, true), after(3, true);
  const Tensor scales = powers_of_two(4, 32);
  fold_scales(after.norm(), after.linears, scales, "block");
  for (const size_t linear : {0, 1})
    EXPECT_TRUE(testing::close_to(after.output(linear), testing::to_double(before.output(linear)))) << linear;
  for (int64_t i = 0; i < 32; ++i)
    EXPECT_NEAR(1 + after.gain.at<float>({i}), (1 + before.gain.at<float>({i})) / scales.at<float>({i}),
                1e-5);
}

TEST(Task8_3_FoldScales, ALinearBeforeIsDividedByRows) {
  Random random(5);
  const Tensor up = random.normal({32, 6}, DType::f32), bias = random.normal({32}, DType::f32),
               down = random.normal({4, 32}, DType::f32), scales = powers_of_two(6, 32);
  const Tensor up_before = up.clone(), bias_before = bias.clone(), down_before = down.clone();
  fold_scales(LinearBefore{.weight = up, .bias = bias}, std::array{down}, scales, "mlp");
  for (int64_t i = 0; i < 32; ++i) {
    const float scale = scales.at<float>({i});
    EXPECT_EQ(up.at<float>({i, 5}) * scale, up_before.at<float>({i, 5}));
    EXPECT_EQ(bias.at<float>({i}) * scale, bias_before.at<float>({i}));
    EXPECT_EQ(down.at<float>({3, i}), down_before.at<float>({3, i}) * scale);
  }
}

TEST(Task8_3_FoldScales, WhatDoesNotFitIsAnErrorThatNamesTheLayer) {
  const Block block(7);
  const Tensor scales = powers_of_two(8, 32), zero = powers_of_two(8, 32);
  zero.at<float>({3}) = 0;
  const std::array<Tensor, 1> other = {Tensor::zeros({4, 31}, DType::f32)};
  const auto message = [&](std::span<const Tensor> linears, const Tensor& by) {
    return error_of([&] { fold_scales(block.norm(), linears, by, "layers.2.input_layernorm"); });
  };
  EXPECT_NE(message(other, scales).find("layers.2.input_layernorm"), std::string::npos);
  EXPECT_NE(message({}, scales).find("layers.2.input_layernorm"), std::string::npos);
  EXPECT_THAT(message(block.linears, zero), ::testing::HasSubstr("feature 3"));
  EXPECT_NE(error_of([&] {
              fold_scales(LinearBefore{.weight = Tensor::zeros({16, 8}, DType::f32)}, block.linears, scales,
                          "v_proj");
            }).find("v_proj"),
            std::string::npos);
}

TEST(Task8_3_SmoothQuant, ScalesAreTheQuotientOfThePowers) {
  const Tensor x = Tensor::from<float>(std::vector<float>{64, 1, 0, 4}, {4});
  const std::array<Tensor, 2> linears = {
      Tensor::from<float>(std::vector<float>{1, -4, 1, 0, 0.5f, 1, 1, 0}, {2, 4}),
      Tensor::from<float>(std::vector<float>{-1, 1, 0, 0}, {1, 4})};
  const auto scales = [&](double alpha) {
    return testing::to_double(smoothquant_scales(x, linears, alpha, "block"));
  };
  const auto expect_near = [](const std::vector<double>& seen, const std::vector<double>& expected) {
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(seen[i], expected[i], 1e-5 * expected[i]) << "feature " << i;
  };
  expect_near(scales(0.5), {8, 0.5, std::sqrt(1e-5), 2 / std::sqrt(1e-5)});
  expect_near(scales(1), {64, 1, 1e-5, 4});
  expect_near(scales(0), {1, 0.25, 1, 1e5});
  expect_near(scales(0.75), {std::pow(64, 0.75), std::pow(4, -0.25), std::pow(1e-5, 0.75),
                             std::pow(4, 0.75) / std::pow(1e-5, 0.25)});
}

TEST(Task8_3_SmoothQuant, WhatDoesNotFitIsAnErrorThatNamesTheLayer) {
  const Block block(9);
  const Tensor x = block.max_abs_x(), bad = x.clone();
  bad.at<float>({4}) = NAN;
  const auto message = [&](const Tensor& max_abs_x, std::span<const Tensor> linears, double alpha) {
    return error_of([&] { smoothquant_scales(max_abs_x, linears, alpha, "layers.1.input_layernorm"); });
  };
  EXPECT_EQ(message(x, block.linears, 0.5), "");
  EXPECT_NE(message(bad, block.linears, 0.5).find("layers.1.input_layernorm"), std::string::npos);
  EXPECT_THAT(message(bad, block.linears, 0.5), ::testing::HasSubstr("feature 4"));
  EXPECT_NE(message(x, block.linears, 1.5).find("1.5"), std::string::npos);
  EXPECT_NE(message(x, {}, 0.5).find("layers.1.input_layernorm"), std::string::npos);
  EXPECT_NE(message(x.narrow(0, 0, 31), block.linears, 0.5).find("layers.1.input_layernorm"),
            std::string::npos);
}

// Features multiplied by a power of two, columns divided by it: the function is the same, and what smoothing makes
// of it is the same in every bit.
TEST(Task8_3_SmoothQuant, UndoesInjectedOutliersWholly) {
  const Block plain(10), injected(10);
  for (const int64_t feature : {3, 20}) {
    injected.gain.at<float>({feature}) *= 64;
    for (const Tensor& linear : injected.linears)
      for (int64_t row = 0; row < linear.dim(0); ++row) linear.at<float>({row, feature}) /= 64;
  }
  ASSERT_TRUE(testing::bitwise_equal(injected.output(0), plain.output(0)));
  for (const Block* block : {&plain, &injected})
    fold_scales(block->norm(), block->linears,
                smoothquant_scales(block->max_abs_x(), block->linears, 0.5, "block"), "block");
  for (const size_t linear : {0, 1})
    EXPECT_TRUE(testing::bitwise_equal(injected.linears[linear], plain.linears[linear]))
        << "linear " << linear;
  EXPECT_TRUE(testing::bitwise_equal(injected.x(), plain.x()));
}

// One scale for all of x, one per row of W, 8 bits each: outliers cost most codes of the other features.
TEST(Task8_3_SmoothQuant, MakesInt8ActivationsWithOutliersUsable) {
  const auto error = [](const Block& block, const Tensor& expected) {
    const QuantizationArgs args{.num_bits = 8};
    const Tensor x = block.x(), w = block.linears[0].clone();
    const auto round = [&](const Tensor& tensor, int64_t together) {
      for (int64_t begin = 0; begin < tensor.numel(); begin += together) {
        const std::span<float> numbers(tensor.data<float>() + begin, static_cast<size_t>(together));
        const Grid grid = make_grid(numbers, args);
        for (float& number : numbers) number = round_to_grid(number, grid, args);
      }
    };
    round(x, x.numel());
    round(w, 32);
    OpContext ctx;
    ctx.batch_invariant = true;
    const Tensor out = Tensor::empty(expected.shape(), DType::f32);
    matmul(ctx, x, w, Tensor(), out);
    double wrong = 0, right = 0;
    for (int64_t i = 0; i < out.numel(); ++i) {
      wrong += std::pow(out.data<float>()[i] - expected.data<float>()[i], 2);
      right += std::pow(expected.data<float>()[i], 2);
    }
    return wrong / right;
  };
  for (const uint64_t seed : {11, 12, 13}) {
    const Block block(seed);
    for (const int64_t feature : {3, 20}) block.gain.at<float>({feature}) *= 64;
    for (const Tensor& linear : block.linears)  // as small as the others' share of the output
      for (int64_t row = 0; row < linear.dim(0); ++row)
        for (const int64_t feature : {3, 20}) linear.at<float>({row, feature}) /= 64;
    const Tensor expected = block.output(0);
    const double naive = error(block, expected);
    fold_scales(block.norm(), block.linears,
                smoothquant_scales(block.max_abs_x(), block.linears, 0.5, "block"), "block");
    EXPECT_LT(error(block, expected), 0.05 * naive) << "seed " << seed;
  }
}

}  // namespace
}  // namespace ladder

#include "step8_advanced/quantization/algorithms/awq.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/numbers/quantize_weight.h"
#include "tests/step8_advanced/quantization/algorithms/layer_problem.h"

namespace ladder {
namespace {

using testing::error_of;
using testing::layer_problem;
using testing::LayerProblem;

QuantizationArgs groups_of(int64_t group_size, int bits = 4, bool symmetric = true) {
  return {
      .num_bits = bits, .symmetric = symmetric, .strategy = ScaleStrategy::group, .group_size = group_size};
}

Tensor mean_abs(const Tensor& x) {
  Hessian hessian(x.dim(1), "layer");
  hessian.add(x);
  return hessian.mean_abs();
}

double rtn_error(const LayerProblem& problem, const Tensor& weight, const QuantizationArgs& args) {
  return layer_error(problem.weight, dequantize(quantize_weight(weight, args, "layer")), problem.hessian);
}

// What the layer loses when its columns are multiplied before rounding and divided afterwards.
double scaled_error(const LayerProblem& problem, const Tensor& scales, const QuantizationArgs& args) {
  const Tensor weight = problem.weight.clone();
  const int64_t k = weight.dim(1);
  for (int64_t i = 0; i < weight.numel(); ++i) weight.data<float>()[i] *= scales.data<float>()[i % k];
  const Tensor rounded = dequantize(quantize_weight(weight, args, "layer"));
  for (int64_t i = 0; i < weight.numel(); ++i) rounded.data<float>()[i] /= scales.data<float>()[i % k];
  return layer_error(problem.weight, rounded, problem.hessian);
}

AwqScales search(const LayerProblem& problem, const QuantizationArgs& args, const AwqOptions& options = {}) {
  return search_awq_scales(problem.x, mean_abs(problem.x), std::array{problem.weight}, args, "layer",
                           options);
}

TEST(Task8_3_Awq, IsFarBetterThanNearestWhereFeaturesHaveOutliers) {
  for (const uint64_t seed : {1, 2, 3}) {
    const LayerProblem problem = layer_problem(seed, 64, 128, 300, 0.3, 4);
    for (const bool symmetric : {true, false}) {
      const QuantizationArgs args = groups_of(32, 3, symmetric);
      const AwqScales best = search(problem, args);
      EXPECT_FALSE(best.identity);
      EXPECT_LT(best.error, 0.75 * best.identity_error) << "seed " << seed;
      EXPECT_NEAR(scaled_error(problem, best.scales, args) / rtn_error(problem, problem.weight, args),
                  best.error / best.identity_error, 1e-3);
    }
  }
}

TEST(Task8_3_Awq, IsNeverWorseThanNearest) {
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    const LayerProblem problem = layer_problem(seed, 16, 64, 100, 0.0);
    for (const QuantizationArgs& args : {groups_of(32), groups_of(16, 8), groups_of(64, 3, false)}) {
      const AwqScales best = search(problem, args);
      EXPECT_LE(best.error, best.identity_error);
      EXPECT_LE(scaled_error(problem, best.scales, args),
                rtn_error(problem, problem.weight, args) * (1 + 1e-4))
          << seed;
    }
  }
}

// Whatever the ratios are worth: the first error that is asked for is that of s = 1, and nothing else is better here.
TEST(Task8_3_Awq, TakesOneWhereNothingIsBetter) {
  const LayerProblem problem = layer_problem(7, 8, 32, 60);
  int asked = 0;
  const AwqScales best = search_awq_scales(
      mean_abs(problem.x), std::array{problem.weight}, groups_of(16), "layer", [&](const Tensor& scales) {
        ++asked;
        const float* s = scales.data<float>();
        return std::all_of(s, s + 32, [](float x) { return x == 1; }) ? 1.0 : 1.5;
      });
  EXPECT_EQ(asked, 21);
  EXPECT_TRUE(best.identity);
  EXPECT_EQ(best.error, 1.0);
  for (int64_t i = 0; i < 32; ++i) EXPECT_EQ(best.scales.at<float>({i}), 1.0f);
}

TEST(Task8_3_Awq, ScalesAreThoseOfTheRatioWithTheLeastError) {
  const std::array<Tensor, 2> linears = {Tensor::from<float>(std::vector<float>{4, -2, 1, -1}, {1, 4}),
                                         Tensor::from<float>(std::vector<float>{-8, 4, 2, 2}, {1, 4})};
  const Tensor x = Tensor::from<float>(std::vector<float>{1, 16, 4, 1}, {4});
  for (const int64_t group : {4, 2}) {
    for (const bool duo : {true, false}) {
      std::vector<Tensor> seen;
      const AwqScales best =
          search_awq_scales(x, linears, groups_of(group), "layer",
                            [&](const Tensor& scales) {
                              seen.push_back(scales);
                              return std::fabs(static_cast<double>(seen.size()) -
                                               17);  // 1 is first, then ratio 0; this is 15 / 20
                            },
                            {.duo_scaling = duo});
      EXPECT_EQ(best.ratio, 0.75);
      EXPECT_EQ(best.error, 0.0);
      EXPECT_EQ(best.identity_error, 16.0);
      const std::vector<double> of_x = {1, 8, std::pow(4, 0.75),
                                        1};  // V = (1, 1/2, 1/4, 1/4) or (1, 1/2, 1, 1)
      const double half = std::pow(0.5, 0.25), last = group == 4 ? std::pow(0.25, 0.25) : 1.0;
      const std::vector<double> of_w = {1, half, last, last};
      std::vector<double> expected;
      for (size_t i = 0; i < 4; ++i) expected.push_back(of_x[i] / (duo ? of_w[i] + 1e-4 : 1.0));
      const double middle = std::sqrt(*std::max_element(expected.begin(), expected.end()) *
                                      *std::min_element(expected.begin(), expected.end()));
      for (int64_t i = 0; i < 4; ++i)
        EXPECT_NEAR(best.scales.at<float>({i}), expected[static_cast<size_t>(i)] / middle, 1e-5)
            << "feature " << i;
    }
  }
}

TEST(Task8_3_Awq, FeaturesThatAreAlwaysZeroAndNegativeOnesWork) {
  const LayerProblem problem = layer_problem(8, 16, 64, 100, 0.3, 2, 3);
  for (int64_t i = 0; i < problem.x.numel(); ++i)
    problem.x.data<float>()[i] = -std::fabs(problem.x.data<float>()[i]);
  const AwqScales best = search(problem, groups_of(16, 3));
  EXPECT_FALSE(best.identity);
  for (int64_t i = 0; i < 64; ++i) {
    EXPECT_GT(best.scales.at<float>({i}), 0.0f);
    EXPECT_TRUE(std::isfinite(best.scales.at<float>({i})));
  }
}

TEST(Task8_3_Awq, WhatDoesNotFitIsAnErrorThatNamesTheLayer) {
  const LayerProblem problem = layer_problem(9, 8, 64, 50);
  const Tensor x = problem.x.clone(), means = mean_abs(problem.x);
  const auto message = [&](const QuantizationArgs& args) {
    return error_of([&] { search_awq_scales(x, means, std::array{problem.weight}, args, "layers.3.mlp"); });
  };
  EXPECT_EQ(message(groups_of(16)), "");
  EXPECT_NE(message(groups_of(48)).find("layers.3.mlp"), std::string::npos);
  EXPECT_NE(error_of([&] {
              search_awq_scales(means, std::array{problem.weight}, groups_of(48), "layers.3.mlp",
                                [](const Tensor&) { return 1.0; });
            }).find("layers.3.mlp"),
            std::string::npos);
  means.at<float>({5}) = -0.1f;  // the mean of x, not of |x|
  EXPECT_THAT(message(groups_of(16)), ::testing::HasSubstr("feature 5"));
  means.at<float>({5}) = 0.1f;
  x.at<float>({3, 6}) = NAN;
  EXPECT_NE(message(groups_of(16)).find("column 6"), std::string::npos);
  EXPECT_NE(
      error_of([&] { clip_awq(x, problem.weight, groups_of(16), "layers.3.mlp.up_proj"); }).find("up_proj"),
      std::string::npos);
  EXPECT_NE(error_of([&] {
              clip_awq(problem.x, problem.weight, {.num_bits = 4, .strategy = ScaleStrategy::tensor},
                       "up_proj");
            }).find("up_proj"),
            std::string::npos);
}

TEST(Task8_3_Awq, ClippingIsWorthItAndNeverBelowHalf) {
  for (const uint64_t seed : {1, 2, 3}) {
    const LayerProblem problem = layer_problem(seed, 32, 64, 200, 0.3);
    for (QuantizationArgs args : {groups_of(32, 3), groups_of(32, 3, false), groups_of(64, 2)}) {
      const Tensor clipped = clip_awq(problem.x, problem.weight, args, "layer");
      EXPECT_LT(rtn_error(problem, clipped, args), 0.95 * rtn_error(problem, problem.weight, args))
          << "seed " << seed;
      for (int64_t row = 0; row < 32; ++row) {
        for (int64_t begin = 0; begin < 64; begin += args.group_size) {
          float before = 0, after = 0;
          for (int64_t i = begin; i < begin + args.group_size; ++i) {
            before = std::max(before, std::fabs(problem.weight.at<float>({row, i})));
            after = std::max(after, std::fabs(clipped.at<float>({row, i})));
          }
          EXPECT_GE(after, 0.5f * before);
          EXPECT_LE(after, before);
          for (int64_t i = begin; i < begin + args.group_size; ++i)
            EXPECT_EQ(clipped.at<float>({row, i}),
                      std::clamp(problem.weight.at<float>({row, i}), -after, after));
        }
      }
    }
  }
}

// Uncorrelated features, of which only one group's row counts at a time: the best clipping is found by trying.
TEST(Task8_3_Awq, EveryGroupIsClippedForItself) {
  const LayerProblem problem = layer_problem(4, 4, 32, 100, 0.3);
  const QuantizationArgs args = groups_of(8, 3);
  const Tensor clipped = clip_awq(problem.x, problem.weight, args, "layer");
  for (int64_t row = 0; row < 4; ++row) {
    for (int64_t begin = 0; begin < 32; begin += 8) {
      const float* w = problem.weight.data<float>() + row * 32 + begin;
      float largest = 0, best = 0;
      for (int64_t i = 0; i < 8; ++i) largest = std::max(largest, std::fabs(w[i]));
      double least = INFINITY, second = INFINITY;
      for (int step = 0; step <= 10; ++step) {
        const float limit = largest * (1.0f - static_cast<float>(step) / 20);
        std::vector<float> numbers(w, w + 8);
        for (float& number : numbers) number = std::clamp(number, -limit, limit);
        const Grid grid = make_grid(numbers, args);
        double error = 0;
        for (int64_t at = 0; at < 100; ++at) {
          double output = 0;
          for (int64_t i = 0; i < 8; ++i)
            output += problem.x.at<float>({at, begin + i}) *
                      (round_to_grid(numbers[static_cast<size_t>(i)], grid, args) - w[i]);
          error += output * output;
        }
        if (error < least) {
          second = least;
          least = error;
          best = limit;
        } else {
          second = std::min(second, error);
        }
      }
      if (second < least * (1 + 1e-4)) continue;  // as good as a tie
      float after = 0;
      for (int64_t i = 0; i < 8; ++i) after = std::max(after, std::fabs(clipped.at<float>({row, begin + i})));
      EXPECT_NEAR(after, best, 1e-6) << "row " << row << ", group of column " << begin;
    }
  }
}

}  // namespace
}  // namespace ladder

#include "step8_advanced/quantization/algorithms/incoherence.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <numbers>

#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/numbers/quantize_weight.h"
#include "tests/step8_advanced/quantization/algorithms/layer_problem.h"

namespace ladder {
namespace {

using testing::error_of;
using testing::Random;

constexpr double kDelta = 1e-3;
constexpr double kNearlyNormal = 8;  // times their deviation: further out are none of 10^14 normal numbers

// |a - b| / |b|
double relative_error(const Tensor& a, const Tensor& b) {
  double error = 0, all = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    const double expected = b.data<float>()[i], off = a.data<float>()[i] - expected;
    error += off * off;
    all += expected * expected;
  }
  return std::sqrt(error / all);
}

uint64_t seed_of(Random& random) {
  return static_cast<uint64_t>(random.integer(0, 1 << 30));
}

// Normal numbers, one of `every` of them `times` as large.
Tensor with_outliers(Random& random, int64_t n, int64_t k, int64_t every = 500, float times = 10) {
  const Tensor weight = random.normal({n, k}, DType::f32);
  for (int64_t i = 0; i < n * k; i += every)
    weight.data<float>()[std::min(i + random.integer(0, every - 1), n * k - 1)] *= times;
  return weight;
}

TEST(Task8_3_Incoherence, IsTheLargestNumberOverTheirRootMeanSquare) {
  const Tensor weight = Tensor::zeros({4, 8}, DType::f32);
  EXPECT_EQ(incoherence_of(weight), 0);
  weight.data<float>()[5] = -3;
  EXPECT_NEAR(incoherence_of(weight), std::sqrt(32.0), 1e-12);  // one number is all there is
  for (int64_t i = 0; i < 32; ++i) weight.data<float>()[i] = i % 3 == 0 ? -0.5f : 0.5f;
  EXPECT_NEAR(incoherence_of(weight), 1, 1e-12);
  EXPECT_NEAR(incoherence_bound(1024, 4096, 0.01), 42.482, 1e-3);
  EXPECT_NEAR(incoherence_bound(1, 1, 4 / std::numbers::e), 2, 1e-12);
}

TEST(Task8_3_Incoherence, UndoneGivesTheWeightBackAndKeepsItsNorm) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{64, 64}, {1, 128}, {96, 1}, {40, 24}, {128, 640}}) {
    const Tensor weight = with_outliers(random, n, k);
    const uint64_t seed = seed_of(random);
    const Tensor spread = make_incoherent(weight, seed);
    EXPECT_LT(relative_error(undo_incoherence(spread, seed), weight), 1e-6) << n << " x " << k;
    double before = 0, after = 0;
    for (int64_t i = 0; i < n * k; ++i) {
      before += std::pow(double{weight.data<float>()[i]}, 2);
      after += std::pow(double{spread.data<float>()[i]}, 2);
    }
    EXPECT_NEAR(after / before, 1, 1e-5) << n << " x " << k;
  }
  EXPECT_NE(error_of([] { make_incoherent(Tensor::zeros({64, 28}, DType::f32), 1); }), "");
}

// A number, an input's column, an output's row, and the matrix that rotations with equal signs on both sides would leave as it is.
TEST(Task8_3_Incoherence, WhateverStandsOutIsSpread) {
  Random random;
  SCOPED_TRACE(random.describe());
  const int64_t n = 256;
  std::vector<std::pair<const char*, Tensor>> weights;
  for (const char* what : {"a number", "a column", "a row", "the identity", "outliers"}) {
    const Tensor weight = Tensor::zeros({n, n}, DType::f32);
    const int64_t at = random.integer(0, n - 1);
    for (int64_t i = 0; i < n; ++i) {
      const auto value = static_cast<float>(random.uniform(0.5, 1));
      if (what == std::string("a column")) weight.at<float>({i, at}) = value;
      if (what == std::string("a row")) weight.at<float>({at, i}) = value;
      if (what == std::string("the identity")) weight.at<float>({i, i}) = 1;
    }
    if (what == std::string("a number")) weight.at<float>({at, n - 1 - at}) = 7;
    weights.emplace_back(what, what == std::string("outliers") ? with_outliers(random, n, n) : weight);
  }
  for (const auto& [what, weight] : weights) {
    SCOPED_TRACE(what);
    EXPECT_GT(incoherence_of(weight), 1.5 * kNearlyNormal);
    const double after = incoherence_of(make_incoherent(weight, seed_of(random)));
    EXPECT_LE(after, incoherence_bound(n, n, kDelta));
    EXPECT_LT(after, kNearlyNormal);
    EXPECT_GE(after, 1 - 1e-6);
  }
  EXPECT_NEAR(incoherence_of(make_incoherent(weights[0].second, 5)), 1, 1e-5);  // all as large
}

double error_of_rounding(const Tensor& weight, const QuantizationArgs& args) {
  return relative_error(dequantize(quantize_weight(weight, args, "weight")), weight);
}
double error_of_spread_rounding(const Tensor& weight, const QuantizationArgs& args, uint64_t seed) {
  const QuantizedWeight rounded = quantize_incoherent(weight, args, "weight", seed);
  return relative_error(undo_incoherence(dequantize(rounded), seed), weight);
}

struct Errors {
  double plain, spread;
};
Errors errors_of(const Tensor& weight, const QuantizationArgs& args, uint64_t seed) {
  return {error_of_rounding(weight, args), error_of_spread_rounding(weight, args, seed)};
}

// The same grids: what the outliers of a weight cost is gone, and a weight without any has nothing to gain. (With two bits the root of
// all squares is no measure of a gain: where outliers hold most of it, a grid that keeps them and makes 0 of all others does well.)
TEST(Task8_3_Incoherence, RoundingAWeightWithOutliersErrsLess) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Tensor normal = random.normal({256, 640}, DType::f32), outliers = with_outliers(random, 256, 640);
  const Tensor heavy = with_outliers(random, 256, 640, 100, 30);
  for (const int64_t group : {0, 128})
    for (const int bits : {2, 3, 4}) {
      QuantizationArgs args{.num_bits = bits, .strategy = ScaleStrategy::channel};
      if (group > 0) {
        args.strategy = ScaleStrategy::group;
        args.group_size = group;
      }
      const uint64_t seed = seed_of(random);
      const auto [plain, spread] = errors_of(outliers, args, seed);
      const auto [plain_heavy, spread_heavy] = errors_of(heavy, args, seed);
      const auto [plain_normal, spread_normal] = errors_of(normal, args, seed);
      std::cout << fmt::format(
          "{} bits, groups of {:3}: normal {:4.1f} {:4.1f}   outliers {:4.1f} {:4.1f}   heavy {:4.1f} {:4.1f}\n",
          bits, group, 100 * plain_normal, 100 * spread_normal, 100 * plain, 100 * spread, 100 * plain_heavy,
          100 * spread_heavy);
      if (bits > 2) {
        EXPECT_LT(spread, 0.8 * plain);
        EXPECT_LT(spread_heavy, 0.9 * plain_heavy);
      }
      for (const double one : {spread, spread_heavy, spread_normal}) EXPECT_NEAR(one / plain_normal, 1, 0.1);
    }
}

// The product with what a file would keep, against the weight that it stands for.
TEST(Task8_3_Incoherence, ProductsNeedTheWeightNotBeTurnedBack) {
  Random random;
  SCOPED_TRACE(random.describe());
  const int64_t m = 5, n = 96, k = 160;
  const Tensor weight = with_outliers(random, n, k), x = random.normal({m, k}, DType::f32);
  const uint64_t seed = seed_of(random);
  const Tensor rounded = dequantize(
      quantize_incoherent(weight, {.num_bits = 4, .strategy = ScaleStrategy::channel}, "weight", seed));
  const Tensor turned_back = undo_incoherence(rounded, seed), before = x.clone();
  const Tensor out = testing::poisoned({m, n}, DType::f32), expected = Tensor::zeros({m, n}, DType::f32);
  multiply_incoherent({}, rounded, x, seed, out);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < k; ++p) sum += double{x.at<float>({i, p})} * turned_back.at<float>({j, p});
      expected.at<float>({i, j}) = static_cast<float>(sum);
    }
  EXPECT_LT(relative_error(out, expected), 1e-5);
  EXPECT_TRUE(testing::bitwise_equal(x, before));
}

}  // namespace
}  // namespace ladder

#include "step8_advanced/quantization/algorithms/gptq.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step8_advanced/quantization/algorithms/damped_factor.h"
#include "step8_advanced/quantization/algorithms/round_columns.h"
#include "step8_advanced/quantization/numbers/quantize_weight.h"
#include "tests/step8_advanced/quantization/algorithms/layer_problem.h"

namespace ladder {
namespace {

using testing::diagonal_matrix;
using testing::error_of;
using testing::layer_problem;
using testing::LayerProblem;
using testing::Random;

QuantizationArgs groups_of(int64_t group_size, int bits = 4, ActivationOrder order = ActivationOrder::none) {
  return {.num_bits = bits, .strategy = ScaleStrategy::group, .group_size = group_size, .actorder = order};
}
QuantizationArgs channels(int bits = 4, ActivationOrder order = ActivationOrder::none) {
  return {.num_bits = bits, .strategy = ScaleStrategy::channel, .actorder = order};
}

double rtn_error(const LayerProblem& problem, const QuantizationArgs& args) {
  return layer_error(problem.weight, dequantize(quantize_weight(problem.weight, args, "layer")),
                     problem.hessian);
}

// The inverse of the part of `h` from `first` on, by Gauss and Jordan.
std::vector<double> inverse_from(const std::vector<double>& h, int64_t k, int64_t first) {
  const int64_t n = k - first;
  std::vector<double> a(static_cast<size_t>(n * n)), inverse(static_cast<size_t>(n * n));
  const auto at = [n](std::vector<double>& m, int64_t i, int64_t j) -> double& {
    return m[static_cast<size_t>(i * n + j)];
  };
  for (int64_t i = 0; i < n; ++i) {
    at(inverse, i, i) = 1;
    for (int64_t j = 0; j < n; ++j) at(a, i, j) = h[static_cast<size_t>((first + i) * k + first + j)];
  }
  for (int64_t column = 0; column < n; ++column) {
    const double pivot = at(a, column, column);
    for (int64_t j = 0; j < n; ++j) at(a, column, j) /= pivot, at(inverse, column, j) /= pivot;
    for (int64_t row = 0; row < n; ++row) {
      const double factor = at(a, row, column);
      if (row == column) continue;
      for (int64_t j = 0; j < n; ++j) {
        at(a, row, j) -= factor * at(a, column, j);
        at(inverse, row, j) -= factor * at(inverse, column, j);
      }
    }
  }
  return inverse;
}

// What GPTQ computes, as "Optimal Brain Compression" writes it: for every column the inverse of H's part for the
// columns that are left, and all of them updated at once. In double, without blocks.
class NaiveGptq {
 public:
  NaiveGptq(const Tensor& hessian, std::vector<int32_t> order) : order_(std::move(order)) {
    const auto k = static_cast<int64_t>(order_.size());
    double mean = 0;
    for (int64_t i = 0; i < k; ++i) mean += hessian.at<float>({i, i}) / static_cast<double>(k);
    std::vector<double> h;
    for (int64_t i = 0; i < k; ++i)
      for (int64_t j = 0; j < k; ++j)
        h.push_back(hessian.at<float>({order_[static_cast<size_t>(i)], order_[static_cast<size_t>(j)]}) +
                    (i == j ? 0.01 * mean : 0.0));
    for (int64_t i = 0; i < k; ++i) inverses_.push_back(inverse_from(h, k, i));
  }

  std::vector<double> operator()(const Tensor& weight, const QuantizationArgs& args) const {
    const int64_t n = weight.dim(0), k = weight.dim(1);
    const bool dynamic = args.strategy == ScaleStrategy::group && args.actorder != ActivationOrder::weight;
    const WeightGrids grids = make_weight_grids(weight, args, "naive");
    std::vector<double> out(static_cast<size_t>(n * k)), w(static_cast<size_t>(k));
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t i = 0; i < k; ++i)
        w[static_cast<size_t>(i)] = weight.at<float>({row, order_[static_cast<size_t>(i)]});
      Grid grid;
      for (int64_t i = 0; i < k; ++i) {
        const int64_t feature = order_[static_cast<size_t>(i)];
        const std::vector<double>& inverse = inverses_[static_cast<size_t>(i)];
        if (!dynamic)
          grid = grids.at(row, feature);
        else if (i % args.group_size == 0)
          grid = make_grid(std::vector<float>(w.begin() + i, w.begin() + i + args.group_size), args);
        const double before = w[static_cast<size_t>(i)];
        const double rounded = round_to_grid(static_cast<float>(before), grid, args);
        const double error = (before - rounded) / inverse[0];
        for (int64_t j = i; j < k; ++j)
          w[static_cast<size_t>(j)] -= error * inverse[static_cast<size_t>(j - i)];
        out[static_cast<size_t>(row * k + feature)] = rounded;
      }
    }
    return out;
  }

 private:
  std::vector<int32_t> order_;
  std::vector<std::vector<double>> inverses_;
};

std::vector<int32_t> by_diagonal(const Tensor& hessian) {
  std::vector<int32_t> order(static_cast<size_t>(hessian.dim(0)));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return hessian.at<float>({a, a}) > hessian.at<float>({b, b});
  });
  return order;
}

// A rounding that falls on the other side changes all that follow in its row, so what is compared is how many rows
// are equal. Ties are not rare: of a symmetric grid the group's own minimum lies half a step behind the last code
// but one.
int64_t rows_that_differ(const Tensor& out, const std::vector<double>& expected) {
  int64_t rows = 0;
  for (int64_t row = 0; row < out.dim(0); ++row) {
    bool equal = true;
    for (int64_t i = 0; i < out.dim(1); ++i)
      equal &=
          std::fabs(out.at<float>({row, i}) - expected[static_cast<size_t>(row * out.dim(1) + i)]) < 1e-5;
    rows += !equal;
  }
  return rows;
}

TEST(Task8_3_Gptq, AgreesWithOneThatInvertsForEveryColumn) {
  const LayerProblem problem = layer_problem(11, 40, 48, 200);
  std::vector<int32_t> as_stored(48);
  std::iota(as_stored.begin(), as_stored.end(), 0);
  const NaiveGptq in_place(problem.hessian, as_stored), sorted(problem.hessian, by_diagonal(problem.hessian));
  for (const ActivationOrder order :
       {ActivationOrder::none, ActivationOrder::group, ActivationOrder::weight}) {
    for (const int64_t group : {0, 8, 16, 24}) {
      for (const bool symmetric : {true, false}) {
        if (group == 0 && order == ActivationOrder::group) continue;
        QuantizationArgs args = group == 0 ? channels(4, order) : groups_of(group, 4, order);
        args.symmetric = symmetric;
        const std::vector<double> expected =
            order == ActivationOrder::none ? in_place(problem.weight, args) : sorted(problem.weight, args);
        for (const int64_t block : {1, 10, 16, 128}) {
          const GptqResult result =
              gptq(problem.weight, problem.hessian, args, "layer", {.block_size = block});
          EXPECT_LE(rows_that_differ(dequantize(result.weight), expected), 4)
              << "of 40 rows; order " << static_cast<int>(order) << ", group " << group << ", block "
              << block;
        }
      }
    }
  }
}

TEST(Task8_3_Gptq, ErrsFarLessThanRoundingToNearest) {
  for (const uint64_t seed : {1, 2, 3}) {
    const LayerProblem problem = layer_problem(seed, 64, 256, 600, 0.7, 4, 3);
    for (const QuantizationArgs& args : {channels(4), groups_of(64), groups_of(32, 3)}) {
      const GptqResult result = gptq(problem.weight, problem.hessian, args, "layer");
      EXPECT_LT(result.error, 0.5 * rtn_error(problem, args)) << "seed " << seed;
      EXPECT_EQ(result.error, layer_error(problem.weight, dequantize(result.weight), problem.hessian));
    }
  }
}

TEST(Task8_3_Gptq, TheOrderOfTheDiagonalIsBetterThanAnyOther) {
  for (const uint64_t seed : {1, 2, 3}) {
    const LayerProblem problem = layer_problem(seed, 64, 256, 600, 0.7, 12);
    const auto error = [&](const QuantizationArgs& args) {
      return gptq(problem.weight, problem.hessian, args, "layer").error;
    };
    EXPECT_LT(error(channels(4, ActivationOrder::weight)), 0.9 * error(channels(4))) << "seed " << seed;
    EXPECT_LT(error(groups_of(64, 4, ActivationOrder::group)), 0.9 * error(groups_of(64))) << "seed " << seed;
    EXPECT_LT(error(groups_of(64, 4, ActivationOrder::weight)), 0.9 * error(groups_of(64)))
        << "seed " << seed;
  }
}

TEST(Task8_3_Gptq, IsRoundingToNearestWhereColumnsAreUncorrelated) {
  Random random;
  SCOPED_TRACE(random.describe());
  const int64_t n = 9, k = 64;
  const Tensor weight = random.normal({n, k}, DType::f32);
  std::vector<float> diagonal(static_cast<size_t>(k));
  for (float& value : diagonal) value = static_cast<float>(random.uniform(0.1, 10));
  std::vector<QuantizationArgs> all = {channels(4), channels(8), groups_of(16, 3), groups_of(16, 2)};
  for (QuantizationArgs args : {channels(4), groups_of(32, 8)}) {
    args.symmetric = false;
    all.push_back(args);
  }
  all.push_back({.num_bits = 8, .is_float = true, .strategy = ScaleStrategy::channel});
  all.push_back({.num_bits = 8, .is_float = true, .strategy = ScaleStrategy::tensor});
  all.push_back({.num_bits = 8,
                 .is_float = true,
                 .strategy = ScaleStrategy::block,
                 .block_rows = 4,
                 .block_columns = 24});
  all.push_back({.num_bits = 4,
                 .is_float = true,
                 .strategy = ScaleStrategy::group,
                 .group_size = 16,
                 .scale_format = ScaleFormat::e4m3});
  all.push_back({.num_bits = 4,
                 .is_float = true,
                 .strategy = ScaleStrategy::group,
                 .group_size = 32,
                 .scale_format = ScaleFormat::e8m0});
  for (QuantizationArgs args : all) {
    for (const ActivationOrder order : {ActivationOrder::none, ActivationOrder::weight}) {
      args.actorder = order;
      const QuantizedWeight nearest = quantize_weight(weight, args, "layer");
      const GptqResult result = gptq(weight, diagonal_matrix(diagonal), args, "layer");
      EXPECT_TRUE(testing::bitwise_equal(result.weight.codes, nearest.codes)) << args.num_bits << " bits";
      EXPECT_TRUE(testing::bitwise_equal(result.weight.scales, nearest.scales));
      EXPECT_EQ(result.weight.zeros.defined(), nearest.zeros.defined());
      if (nearest.zeros.defined()) {
        EXPECT_TRUE(testing::bitwise_equal(result.weight.zeros, nearest.zeros));
      }
      EXPECT_EQ(result.weight.group_size, nearest.group_size);
      EXPECT_EQ(result.weight.type, nearest.type);
    }
  }
}

TEST(Task8_3_Gptq, GridsAreClippedAndShareAGlobalScaleWhereThatIsAskedFor) {
  const Tensor weight = Random(12).normal({6, 64}, DType::f32),
               hessian = diagonal_matrix(std::vector<float>(64, 1.0f));
  for (const QuantizationArgs& args :
       {channels(3), groups_of(16, 3), groups_of(16, 3, ActivationOrder::weight)}) {
    const QuantizedWeight nearest =
        quantize_weight(weight, args, make_clipped_weight_grids(weight, args, "layer"));
    const GptqResult result = gptq(weight, hessian, args, "layer", {.clipped_grids = true});
    EXPECT_TRUE(testing::bitwise_equal(result.weight.codes, nearest.codes));
    EXPECT_TRUE(testing::bitwise_equal(result.weight.scales, nearest.scales));
  }
  QuantizationArgs nvfp4{.num_bits = 4, .is_float = true, .strategy = ScaleStrategy::group, .group_size = 16};
  nvfp4.scale_format = ScaleFormat::e4m3;
  const QuantizedWeight nearest = quantize_weight(weight, nvfp4, "layer", 100.0f);
  const GptqResult result = gptq(weight, hessian, nvfp4, "layer", {.global_scale = 100.0f});
  EXPECT_TRUE(testing::bitwise_equal(result.weight.codes, nearest.codes));
  EXPECT_TRUE(testing::bitwise_equal(result.weight.scales, nearest.scales));
}

TEST(Task8_3_Gptq, EveryGroupSizeWorksAndOthersAreErrors) {
  const LayerProblem problem = layer_problem(3, 8, 320, 200);
  for (const int64_t group : {1, 2, 5, 32, 64, 160, 320}) {
    const GptqResult result = gptq(problem.weight, problem.hessian, groups_of(group), "layer");
    EXPECT_EQ(result.weight.num_groups(), 320 / group);
    EXPECT_LT(result.error, 0.02) << "groups of " << group;
  }
  EXPECT_LT(gptq(problem.weight, problem.hessian, channels(), "layer").error, 0.02);
  for (const int64_t group : {256, 640, 0, -1}) {
    const std::string message =
        error_of([&] { gptq(problem.weight, problem.hessian, groups_of(group), "mlp.down_proj"); });
    EXPECT_NE(message.find("mlp.down_proj"), std::string::npos) << group << ": " << message;
  }
  EXPECT_NE(error_of([&] {
              gptq(problem.weight, problem.hessian, channels(4, ActivationOrder::group), "q_proj");
            }).find("q_proj"),
            std::string::npos);
}

TEST(Task8_3_Gptq, ABlockEndsWhereAGroupDoes) {
  EXPECT_EQ(end_of_block(0, 640, 128, 640), 128);
  EXPECT_EQ(end_of_block(512, 640, 128, 640), 640);
  EXPECT_EQ(end_of_block(0, 640, 128, 32), 128);
  EXPECT_EQ(end_of_block(0, 480, 128, 96), 96);
  EXPECT_EQ(end_of_block(0, 480, 128, 40), 120);
  EXPECT_EQ(end_of_block(128, 640, 128, 160), 160);
  EXPECT_EQ(end_of_block(160, 640, 128, 160), 288);
  EXPECT_EQ(end_of_block(576, 640, 100, 1), 640);
}

// The grid of a group inside a block is made of weights that have the updates of the block's columns before it:
// with grids of the original weights the error is another one.
TEST(Task8_3_Gptq, AGroupsScaleIsThatOfItsWeightsWhenItsTurnComes) {
  const LayerProblem problem = layer_problem(21, 16, 128, 400);
  const QuantizationArgs args = groups_of(16);
  const Tensor by_one =
      gptq(problem.weight, problem.hessian, args, "layer", {.block_size = 16}).weight.scales;
  const Tensor by_many =
      gptq(problem.weight, problem.hessian, args, "layer", {.block_size = 128}).weight.scales;
  const Tensor original = make_weight_grids(problem.weight, args, "layer").scales;
  int64_t as_by_one = 0, as_original = 0;
  for (int64_t i = 0; i < by_many.numel(); ++i) {
    const float scale = by_many.data<float>()[i];
    as_by_one += std::fabs(scale / by_one.data<float>()[i] - 1) < 1e-3;
    as_original += std::fabs(scale / original.data<float>()[i] - 1) < 1e-3;
  }
  EXPECT_GT(as_by_one, by_many.numel() * 9 / 10);
  EXPECT_LT(as_original, by_many.numel() / 4) << "the first group's only";
}

TEST(Task8_3_Gptq, ActOrderGroupSaysWhichColumnIsInWhichGroup) {
  const LayerProblem problem = layer_problem(4, 8, 64, 200, 0.7, 6);
  const GptqResult result =
      gptq(problem.weight, problem.hessian, groups_of(16, 4, ActivationOrder::group), "layer");
  const std::vector<int32_t> order = by_diagonal(problem.hessian);
  ASSERT_TRUE(result.weight.columns.defined());
  for (int64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(result.weight.columns.at<int32_t>({i}), order[static_cast<size_t>(i)]);
    EXPECT_EQ(result.g_idx.at<int32_t>({order[static_cast<size_t>(i)]}), i / 16);
  }
  const GptqResult as_stored =
      gptq(problem.weight, problem.hessian, groups_of(16, 4, ActivationOrder::weight), "layer");
  EXPECT_FALSE(as_stored.weight.columns.defined());
  EXPECT_FALSE(as_stored.g_idx.defined());
}

TEST(Task8_3_Gptq, ADeadColumnIsZero) {
  const LayerProblem problem = layer_problem(5, 8, 64, 200, 0.7, 0, 2);
  for (const ActivationOrder order :
       {ActivationOrder::none, ActivationOrder::group, ActivationOrder::weight}) {
    const GptqResult result = gptq(problem.weight, problem.hessian, groups_of(16, 4, order), "layer");
    EXPECT_EQ(result.dead_columns, 2);
    EXPECT_EQ(result.damping, 0.01);
    const Tensor rounded = dequantize(result.weight);
    for (int64_t row = 0; row < 8; ++row)
      for (const int64_t column : {7, 44}) EXPECT_EQ(rounded.at<float>({row, column}), 0.0f);
  }
  EXPECT_NE(problem.weight.at<float>({0, 7}), 0.0f) << "the weight itself is left as it is";
}

TEST(Task8_3_DampedFactor, AColumnThatWasNeverUsedHasOneOnTheDiagonal) {
  const std::vector<int32_t> order = {1, 2, 0};
  const DampedFactor factor = damped_factor(diagonal_matrix({0, 3, 5}), order, "layer", 0.01, 1);
  for (int64_t i = 0; i < 3; ++i) {
    const double diagonal = std::vector<double>{3, 5, 1}[static_cast<size_t>(i)] + 0.01 * 3;
    EXPECT_NEAR(factor.u.at<float>({i, i}), 1 / std::sqrt(diagonal), 1e-6)
        << "column " << order[static_cast<size_t>(i)];
  }
  EXPECT_NE(error_of([&] {
              damped_factor(diagonal_matrix({0, 3, 5}), order, "o_proj", 0, 1);
            }).find("o_proj"),
            std::string::npos);
}

TEST(Task8_3_Gptq, FewerRowsThanColumnsWorkThroughDamping) {
  const LayerProblem problem = layer_problem(6, 16, 128, 9);
  const GptqResult result = gptq(problem.weight, problem.hessian, groups_of(32), "layer");
  EXPECT_LT(result.error, 0.2 * rtn_error(problem, groups_of(32)));
}

TEST(Task8_3_Gptq, AHessianThatIsNotPositiveDefiniteTakesMoreDampingAndSaysSo) {
  // Eigenvalues 1 + 1.05 and 1 - 1.05: 0.01 is too little, 0.1 enough.
  const LayerProblem problem = layer_problem(7, 4, 8, 50);
  const Tensor hessian = diagonal_matrix(std::vector<float>(8, 1.0f));
  hessian.at<float>({2, 6}) = hessian.at<float>({6, 2}) = 1.05f;
  EXPECT_NEAR(gptq(problem.weight, hessian, channels(), "layer").damping, 0.1, 1e-9);
  hessian.at<float>({2, 6}) = hessian.at<float>({6, 2}) = 1.5f;
  EXPECT_NEAR(gptq(problem.weight, hessian, channels(), "layer").damping, 1.0, 1e-9);
  hessian.at<float>({2, 6}) = hessian.at<float>({6, 2}) = 2.5f;
  const std::string message = error_of([&] { gptq(problem.weight, hessian, channels(), "layers.4.o_proj"); });
  EXPECT_NE(message.find("layers.4.o_proj"), std::string::npos) << message;
  EXPECT_NE(message.find("column 2"), std::string::npos) << message;
}

TEST(Task8_3_Gptq, RowsOfTheWeightNeverMeet) {
  const LayerProblem problem = layer_problem(10, 600, 160, 200);
  const QuantizationArgs args = groups_of(32);
  const Tensor whole =
      dequantize(gptq(problem.weight, problem.hessian, args, "layer", {.block_size = 64}).weight);
  for (const int64_t first : {0, 255, 510, 590}) {
    const Tensor rows = problem.weight.narrow(0, first, 10).clone();
    const Tensor alone = dequantize(gptq(rows, problem.hessian, args, "layer", {.block_size = 64}).weight);
    EXPECT_TRUE(testing::bitwise_equal(alone, whole.narrow(0, first, 10).clone())) << "from row " << first;
  }
}

TEST(Task8_3_Gptq, NanIsAnErrorThatNamesTheLayer) {
  const LayerProblem problem = layer_problem(8, 4, 8, 50);
  const Tensor weight = problem.weight.clone(), hessian = problem.hessian.clone();
  weight.at<float>({2, 3}) = NAN;
  hessian.at<float>({5, 1}) = NAN;
  EXPECT_NE(error_of([&] { gptq(weight, problem.hessian, channels(), "k_proj"); }).find("k_proj"),
            std::string::npos);
  EXPECT_NE(error_of([&] { gptq(problem.weight, hessian, channels(), "k_proj"); }).find("k_proj"),
            std::string::npos);
}

TEST(Task8_3_Gptq, CodesDoNotDependOnTheNumberOfThreads) {
  const int before = num_threads();
  const LayerProblem problem = layer_problem(9, 37, 200, 300);
  const QuantizationArgs args = groups_of(40, 4, ActivationOrder::group);
  set_num_threads(1);
  const GptqResult alone = gptq(problem.weight, problem.hessian, args, "layer");
  for (const int threads : {2, 5}) {
    set_num_threads(threads);
    const GptqResult result = gptq(problem.weight, problem.hessian, args, "layer");
    EXPECT_TRUE(testing::bitwise_equal(result.weight.codes, alone.weight.codes));
    EXPECT_TRUE(testing::bitwise_equal(result.weight.scales, alone.weight.scales));
    EXPECT_EQ(result.error, alone.error);
  }
  set_num_threads(before);
}

}  // namespace
}  // namespace ladder

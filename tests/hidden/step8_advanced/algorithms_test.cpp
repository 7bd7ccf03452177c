// Tasks 8.3: small layers of random shapes against the formulas, written out in double with an inverse for each column.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "step8_advanced/quantization/algorithms/awq.h"
#include "step8_advanced/quantization/algorithms/fold_scales.h"
#include "step8_advanced/quantization/algorithms/gptq.h"
#include "step8_advanced/quantization/algorithms/smoothquant.h"
#include "step8_advanced/quantization/algorithms/sparse.h"
#include "step8_advanced/quantization/numbers/quantize_weight.h"
#include "tests/step8_advanced/quantization/algorithms/layer_problem.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::layer_problem;
using testing::LayerProblem;
using testing::Random;
using Matrix = std::vector<std::vector<double>>;

float at(const Tensor& matrix, int64_t row, int64_t column) {
  return matrix.data<float>()[row * matrix.dim(1) + column];
}

// By Gauss and Jordan.
Matrix inverse(Matrix a) {
  const size_t k = a.size();
  Matrix b(k, std::vector<double>(k));
  for (size_t i = 0; i < k; ++i) b[i][i] = 1;
  for (size_t i = 0; i < k; ++i) {
    const double pivot = a[i][i];
    for (size_t j = 0; j < k; ++j) a[i][j] /= pivot, b[i][j] /= pivot;
    for (size_t row = 0; row < k; ++row) {
      if (row == i) continue;
      const double factor = a[row][i];
      for (size_t j = 0; j < k; ++j) a[row][j] -= factor * a[i][j], b[row][j] -= factor * b[i][j];
    }
  }
  return b;
}

// One row: each column in this order is rounded, and those to come are moved to where the error is least.
std::vector<double> rounded_row(std::vector<double> w, const Matrix& h, const std::vector<size_t>& order,
                                const std::function<double(size_t column, double w)>& round) {
  std::vector<size_t> left = order;
  std::vector<double> result(w.size());
  while (!left.empty()) {
    Matrix part(left.size(), std::vector<double>(left.size()));
    for (size_t i = 0; i < left.size(); ++i)
      for (size_t j = 0; j < left.size(); ++j) part[i][j] = h[left[i]][left[j]];
    const Matrix inverted = inverse(part);
    const size_t column = left.front();
    result[column] = round(column, w[column]);
    const double error = (w[column] - result[column]) / inverted[0][0];
    for (size_t j = 1; j < left.size(); ++j) w[left[j]] -= error * inverted[0][j];
    left.erase(left.begin());
  }
  return result;
}

Matrix damped(const Tensor& hessian, double damping) {
  const auto k = static_cast<size_t>(hessian.dim(0));
  Matrix h(k, std::vector<double>(k));
  double mean = 0;
  for (size_t i = 0; i < k; ++i)
    mean += at(hessian, static_cast<int64_t>(i), static_cast<int64_t>(i)) / static_cast<double>(k);
  for (size_t i = 0; i < k; ++i)
    for (size_t j = 0; j < k; ++j)
      h[i][j] = at(hessian, static_cast<int64_t>(i), static_cast<int64_t>(j)) + (i == j ? damping * mean : 0);
  return h;
}

// Where two codes are as near, f32 and double may choose differently, and the rest of the row with them.
TEST(Hidden8_3_Gptq, AlmostEveryRowIsWhatTheFormulaGives) {
  Random random;
  SCOPED_TRACE(random.describe());
  int rows = 0, equal = 0;
  for (int round = 0; round < 12; ++round) {
    QuantizationArgs args{
        .num_bits = static_cast<int>(random.integer(2, 4)),
        .strategy = random.one_of<ScaleStrategy>({ScaleStrategy::channel, ScaleStrategy::group})};
    args.symmetric = random.integer(0, 1) == 1;
    const int64_t n = random.integer(1, 9), k = 8 * random.integer(1, 5);
    if (args.strategy == ScaleStrategy::group) args.group_size = 8;
    args.actorder = ActivationOrder::weight;  // grids are made before the loop
    const LayerProblem problem = layer_problem(random.seed() + static_cast<uint64_t>(round), n, k, 4 * k);
    GptqOptions options;
    options.block_size = random.one_of<int64_t>({1, 3, 8, 128});
    const Tensor found = dequantize(gptq(problem.weight, problem.hessian, args, "layer", options).weight);

    std::vector<size_t> order(static_cast<size_t>(k));
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, [&](size_t a, size_t b) {
      return at(problem.hessian, static_cast<int64_t>(a), static_cast<int64_t>(a)) >
             at(problem.hessian, static_cast<int64_t>(b), static_cast<int64_t>(b));
    });
    const Matrix h = damped(problem.hessian, options.damping);
    const WeightGrids grids = make_weight_grids(problem.weight, args, "layer");
    for (int64_t row = 0; row < n; ++row) {
      std::vector<double> w;
      for (int64_t i = 0; i < k; ++i) w.push_back(at(problem.weight, row, i));
      const std::vector<double> expected = rounded_row(w, h, order, [&](size_t column, double value) {
        return round_to_grid(static_cast<float>(value), grids.at(row, static_cast<int64_t>(column)), args);
      });
      bool same = true;
      for (int64_t i = 0; i < k; ++i)
        same = same && std::fabs(at(found, row, i) - expected[static_cast<size_t>(i)]) < 1e-6;
      ++rows;
      equal += same ? 1 : 0;
    }
  }
  EXPECT_GE(equal, rows - 1 - rows / 20) << "of " << rows << " rows";
}

TEST(Hidden8_3_Gptq, UncorrelatedColumnsAreRoundedToNearest) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 20; ++round) {
    const QuantizationArgs args{.num_bits = static_cast<int>(random.integer(2, 8)),
                                .strategy = ScaleStrategy::channel};
    const int64_t n = random.integer(1, 20), k = random.integer(1, 60);
    const Tensor weight = random.normal({n, k}, DType::f32);
    std::vector<float> diagonal(static_cast<size_t>(k));
    for (float& one : diagonal) one = static_cast<float>(random.uniform(0.5, 9));
    const Tensor found = dequantize(gptq(weight, testing::diagonal_matrix(diagonal), args, "layer").weight);
    EXPECT_TRUE(testing::bitwise_equal(found, dequantize(quantize_weight(weight, args, "layer"))));
  }
}

TEST(Hidden8_3_Sparse, WhatIsKeptOfFourIsWhatTheScoresSay) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 40 && !HasFailure(); ++round) {
    const int64_t n = random.integer(1, 12), k = 4 * random.integer(1, 12);
    const Tensor weight = random.normal({n, k}, DType::f32);
    std::vector<float> diagonal(static_cast<size_t>(k));
    for (float& one : diagonal) one = static_cast<float>(std::exp2(random.uniform(-8, 8)));
    const Tensor hessian = testing::diagonal_matrix(diagonal);
    const std::vector<float> alike(static_cast<size_t>(k), 3.0f);
    struct Case {
      Tensor found;
      std::vector<float> diagonal;
    };
    for (const Case& one :
         {Case{prune_by_magnitude(weight, "layer"), alike},
          Case{prune_by_wanda(weight, hessian, "layer"), diagonal},
          // Without correlations nothing can be made up for.
          Case{prune_by_sparse_gpt(weight, testing::diagonal_matrix(alike), "layer").weight, alike}}) {
      EXPECT_FALSE(more_than_two_of_four(one.found));
      for (int64_t row = 0; row < n; ++row)
        for (int64_t i = 0; i < k; ++i) {
          const auto score = [&](int64_t column) {
            return double{std::fabs(at(weight, row, column))} *
                   std::sqrt(double{one.diagonal[static_cast<size_t>(column)]});
          };
          int larger = 0;
          for (int64_t j = i / 4 * 4; j < i / 4 * 4 + 4; ++j) larger += score(j) > score(i);
          EXPECT_EQ(at(one.found, row, i), larger < 2 ? at(weight, row, i) : 0.0f);
        }
    }
  }
}

TEST(Hidden8_3_Sparse, SparseGptsLossIsLeast) {
  Random random;
  SCOPED_TRACE(random.describe());
  double sparse_gpt = 0, wanda = 0, magnitude = 0;
  for (int round = 0; round < 6; ++round) {
    const LayerProblem problem =
        layer_problem(random.seed() + static_cast<uint64_t>(round), 16, 64, 256, 0.7, /*outliers=*/2);
    const auto error = [&](const Tensor& pruned) {
      return layer_error(problem.weight, pruned, problem.hessian);
    };
    const SparseGptResult result = prune_by_sparse_gpt(problem.weight, problem.hessian, "layer");
    EXPECT_FALSE(more_than_two_of_four(result.weight));
    EXPECT_NEAR(result.error, error(result.weight), 1e-6);
    sparse_gpt += result.error;
    wanda += error(prune_by_wanda(problem.weight, problem.hessian, "layer"));
    magnitude += error(prune_by_magnitude(problem.weight, "layer"));
  }
  EXPECT_LT(sparse_gpt, wanda);
  EXPECT_LT(wanda, magnitude);
}

TEST(Hidden8_3_SmoothQuant, ScalesAreThoseOfTheFormulaAndChangeNoOutput) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 40 && !HasFailure(); ++round) {
    const int64_t k = random.integer(1, 50);
    const double alpha = random.one_of<double>({0, 1, random.uniform(0, 1)});
    Tensor max_abs_x = random.normal({k}, DType::f32, 20);
    testing::take_magnitudes(max_abs_x);
    std::vector<Tensor> linears;
    for (int64_t i = random.integer(1, 3); i > 0; --i)
      linears.push_back(random.normal({random.integer(1, 9), k}, DType::f32));
    const Tensor scales = smoothquant_scales(max_abs_x, linears, alpha, "layer");
    for (int64_t i = 0; i < k; ++i) {
      double largest = 0;
      for (const Tensor& linear : linears)
        for (int64_t row = 0; row < linear.dim(0); ++row)
          largest = std::max<double>(largest, std::fabs(at(linear, row, i)));
      const double scale = std::pow(max_abs_x.data<float>()[i], alpha) / std::pow(largest, 1 - alpha);
      EXPECT_NEAR(scales.data<float>()[i], scale, 1e-5 * scale);
    }

    // Folded into a norm and its linears: W (gain * x + bias).
    const NormBefore norm{random.normal({k}, DType::f32), random.normal({k}, DType::f32),
                          random.integer(0, 1) == 1};
    const Tensor x = random.normal({k}, DType::f32);
    const auto outputs = [&] {
      std::vector<double> all;
      for (const Tensor& linear : linears)
        for (int64_t row = 0; row < linear.dim(0); ++row) {
          double sum = 0;
          for (int64_t i = 0; i < k; ++i)
            sum += double{at(linear, row, i)} *
                   ((double{norm.gain.data<float>()[i]} + (norm.gain_plus_one ? 1 : 0)) * x.data<float>()[i] +
                    norm.bias.data<float>()[i]);
          all.push_back(sum);
        }
      return all;
    };
    const std::vector<double> before = outputs();
    std::vector<std::vector<float>> weights;
    fold_scales(norm, linears, scales, "layer");
    const std::vector<double> after = outputs();
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_NEAR(after[i], before[i], 1e-4 * (1 + std::fabs(before[i]) + static_cast<double>(k)));
  }
}

TEST(Hidden8_3_Awq, TheSearchTakesTheBestOfItsScales) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 20 && !HasFailure(); ++round) {
    const int64_t group = 8, k = group * random.integer(1, 5);
    const QuantizationArgs args{.num_bits = 4, .strategy = ScaleStrategy::group, .group_size = group};
    std::vector<Tensor> linears;
    for (int64_t i = random.integer(1, 3); i > 0; --i)
      linears.push_back(random.normal({random.integer(1, 9), k}, DType::f32));
    Tensor mean_abs_x = random.normal({k}, DType::f32, 3);
    testing::take_magnitudes(mean_abs_x);
    AwqOptions options;
    options.ratios = static_cast<int>(random.integer(1, 25));
    options.duo_scaling = random.integer(0, 1) == 1;
    // What is least is the distance to scales of a ratio that only this test knows.
    const double wanted = random.uniform(0, 1);
    std::vector<double> share(static_cast<size_t>(k));
    double rows = 0;
    for (const Tensor& linear : linears)
      for (int64_t row = 0; row < linear.dim(0); ++row, ++rows)
        for (int64_t i = 0; i < k; ++i) {
          double largest = 0;
          for (int64_t j = i / group * group; j < i / group * group + group; ++j)
            largest = std::max<double>(largest, std::fabs(at(linear, row, j)));
          share[static_cast<size_t>(i)] += std::fabs(at(linear, row, i)) / largest;
        }
    const auto scales_of = [&](double ratio) {
      std::vector<double> scales(static_cast<size_t>(k));
      for (size_t i = 0; i < scales.size(); ++i)
        scales[i] = std::max(std::pow(mean_abs_x.data<float>()[i], ratio) /
                                 (options.duo_scaling ? std::pow(share[i] / rows, 1 - ratio) + 1e-4 : 1),
                             1e-4);
      const double middle = std::sqrt(std::ranges::max(scales) * std::ranges::min(scales));
      for (double& scale : scales) scale /= middle;
      return scales;
    };
    const auto distance = [&](const std::vector<double>& a, const std::vector<double>& b) {
      double sum = 0;
      for (size_t i = 0; i < a.size(); ++i) sum += std::pow(std::log(a[i]) - std::log(b[i]), 2);
      return sum;
    };
    const std::vector<double> aim = scales_of(wanted), ones(static_cast<size_t>(k), 1.0);
    const AwqScales found = search_awq_scales(
        mean_abs_x, linears, args, "layer",
        [&](const Tensor& scales) {
          return distance(std::vector<double>(scales.data<float>(), scales.data<float>() + k), aim);
        },
        options);
    double least = distance(ones, aim);
    std::vector<double> best = ones;
    for (int i = 0; i < options.ratios; ++i) {
      const std::vector<double> of_ratio = scales_of(static_cast<double>(i) / options.ratios);
      if (const double error = distance(of_ratio, aim); error < least) least = error, best = of_ratio;
    }
    EXPECT_NEAR(found.error, least, 1e-4 * (1 + least));
    EXPECT_NEAR(found.identity_error, distance(ones, aim), 1e-4 * (1 + distance(ones, aim)));
    EXPECT_NEAR(
        distance(std::vector<double>(found.scales.data<float>(), found.scales.data<float>() + k), aim), least,
        1e-4 * (1 + least));
  }
}

}  // namespace
}  // namespace ladder

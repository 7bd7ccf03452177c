#include "step8_advanced/quantization/algorithms/sparse.h"

#include <array>
#include <cmath>
#include <numeric>

#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/algorithms/damped_factor.h"
#include "step8_advanced/quantization/algorithms/hessian.h"
#include "step8_advanced/quantization/algorithms/round_columns.h"

namespace ladder {
namespace {

void check_width(const Tensor& weight, std::string_view name) {
  expect_dtype(weight, DType::f32, name);
  expect_shape(weight, {-1, -1}, name);
  LADDER_CHECK(weight.is_contiguous(), "{}: the weight must be contiguous", name);
  LADDER_CHECK(weight.dim(1) % 4 == 0, "{}: {} columns; two of every four need a multiple of 4", name,
               weight.dim(1));
}

}  // namespace

// >>> task 8.3.sparse: which two of four stay
namespace {

// The two of four that stay: bit i for number i.
uint8_t largest_two(const std::array<double, 4>& scores) {
  uint8_t kept = 0;
  for (size_t i = 0; i < 4; ++i) {
    int larger = 0;  // numbers that stay before this one
    for (size_t j = 0; j < 4; ++j) larger += scores[j] > scores[i] || (scores[j] == scores[i] && j > i);
    if (larger < 2) kept = static_cast<uint8_t>(kept | 1 << i);
  }
  return kept;
}

// Scores are |w| times the column's factor.
Tensor prune_by_score(const Tensor& weight, const std::vector<double>& factors) {
  const Tensor result = weight.clone();
  for (int64_t row = 0; row < weight.dim(0); ++row) {
    float* w = result.data<float>() + row * weight.dim(1);
    for (int64_t column = 0; column < weight.dim(1); column += 4) {
      std::array<double, 4> scores;
      for (int64_t i = 0; i < 4; ++i)
        scores[static_cast<size_t>(i)] = std::fabs(w[column + i]) * factors[static_cast<size_t>(column + i)];
      const uint8_t kept = largest_two(scores);
      for (int64_t i = 0; i < 4; ++i)
        if ((kept >> i & 1) == 0) w[column + i] = 0;
    }
  }
  return result;
}

}  // namespace

std::optional<WeightPlace> more_than_two_of_four(const Tensor& weight) {
  const int64_t k = weight.dim(1);
  for (int64_t row = 0; row < weight.dim(0); ++row) {
    for (int64_t begin = 0; begin < k; begin += 4) {
      int count = 0;
      for (int64_t i = begin; i < begin + 4 && i < k; ++i) count += weight.data<float>()[row * k + i] != 0;
      if (count > 2) return WeightPlace{row, begin};
    }
  }
  return std::nullopt;
}

Tensor prune_by_magnitude(const Tensor& weight, std::string_view name) {
  check_width(weight, name);
  return prune_by_score(weight, std::vector<double>(static_cast<size_t>(weight.dim(1)), 1.0));
}

Tensor prune_by_wanda(const Tensor& weight, const Tensor& hessian, std::string_view name) {
  check_width(weight, name);
  std::vector<double> norms = hessian_diagonal(hessian, weight.dim(1), name);
  for (double& norm : norms) norm = std::sqrt(norm);
  return prune_by_score(weight, norms);
}

bool TwoOfFour::keeps(int64_t row, int64_t column, const float* w) {
  uint8_t& kept = kept_[static_cast<size_t>(row)];
  if (column % 4 == 0) {
    std::array<double, 4> scores;
    for (int64_t i = 0; i < 4; ++i) {
      const double ratio = w[column + i] / u_.data<float>()[(column + i) * u_.dim(1) + column + i];
      scores[static_cast<size_t>(i)] = ratio * ratio;
    }
    kept = largest_two(scores);
  }
  return (kept >> (column % 4) & 1) != 0;
}

SparseGptResult prune_by_sparse_gpt(const Tensor& weight, const Tensor& hessian, std::string_view name,
                                    double damping, double max_damping, int64_t block_size) {
  check_width(weight, name);
  const std::vector<double> diagonal = hessian_diagonal(hessian, weight.dim(1), name);
  SparseGptResult result;
  result.weight = weight.clone();
  result.dead_columns = clear_dead_columns(result.weight, diagonal);
  std::vector<int32_t> order(static_cast<size_t>(weight.dim(1)));
  std::iota(order.begin(), order.end(), 0);
  const DampedFactor factor = damped_factor(hessian, order, name, damping, max_damping);
  result.damping = factor.damping;
  TwoOfFour choice(weight.dim(0), factor.u);
  round_columns(result.weight, factor.u, block_size, 4, [&](int64_t row, int64_t column, const float* w) {
    return choice.keeps(row, column, w) ? w[column] : 0.0f;
  });
  result.error = layer_error(weight, result.weight, hessian);
  return result;
}
// <<< task 8.3.sparse

}  // namespace ladder

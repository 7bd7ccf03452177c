#include "step8_advanced/quantization/algorithms/damped_factor.h"

#include <algorithm>
#include <cmath>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step8_advanced/quantization/algorithms/cholesky.h"

namespace ladder {

std::vector<double> hessian_diagonal(const Tensor& hessian, int64_t k, std::string_view name) {
  const std::string what = std::string(name) + ": hessian";
  expect_dtype(hessian, DType::f32, what);
  expect_shape(hessian, {k, k}, what);
  LADDER_CHECK(hessian.is_contiguous(), "{} must be contiguous", what);
  std::vector<double> diagonal(static_cast<size_t>(k));
  parallel_for(k, 16, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const float* numbers = hessian.data<float>() + row * k;
      for (int64_t column = 0; column < k; ++column)
        LADDER_CHECK(std::isfinite(numbers[column]),
                     "{} is {} at row {}, column {}, which should be a finite number", what, numbers[column],
                     row, column);
      LADDER_CHECK(numbers[row] >= 0, "{} is {} at row and column {}, which should not be below 0", what,
                   numbers[row], row);
      diagonal[static_cast<size_t>(row)] = numbers[row];
    }
  });
  return diagonal;
}

int64_t clear_dead_columns(const Tensor& weight, std::span<const double> diagonal) {
  const int64_t k = weight.dim(1);
  int64_t dead = 0;
  for (int64_t column = 0; column < k; ++column) {
    if (diagonal[static_cast<size_t>(column)] != 0) continue;
    ++dead;
    for (int64_t row = 0; row < weight.dim(0); ++row) weight.data<float>()[row * k + column] = 0;
  }
  return dead;
}

DampedFactor damped_factor(const Tensor& hessian, std::span<const int32_t> order, std::string_view name,
                           double damping, double max_damping) {
  LADDER_CHECK(damping > 0, "{}: damping of {}; expected a number above 0", name, damping);
  const auto k = static_cast<int64_t>(order.size());
  const float* h = hessian.data<float>();
  const Tensor damped = Tensor::empty({k, k}, DType::f64);
  const auto diagonal = [&](int32_t column) -> double {
    const double value = h[column * k + column];
    return value != 0 ? value : 1.0;
  };
  double mean = 0;
  for (const int32_t column : order) mean += diagonal(column) / static_cast<double>(k);

  for (;; damping *= 10) {
    parallel_for(k, 16, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int32_t row = order[static_cast<size_t>(i)];
        double* to = damped.data<double>() + i * k;
        for (int64_t j = 0; j < k; ++j) to[j] = h[row * k + order[static_cast<size_t>(j)]];
        to[i] = diagonal(row) + damping * mean;
      }
    });
    const auto pivot = factor_inverse(damped);
    if (!pivot) break;
    LADDER_CHECK(
        damping * 10 <= max_damping * (1 + 1e-9),
        "{}: the hessian is not positive definite at column {}, not with damping {:.3g} either; expected more "
        "calibration rows, or a larger limit",
        name, order[static_cast<size_t>(*pivot)], damping);
  }
  DampedFactor result{.u = Tensor::empty({k, k}, DType::f32), .damping = damping};
  parallel_for(k * k, 4096, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      result.u.data<float>()[i] = static_cast<float>(damped.data<double>()[i]);
  });
  return result;
}

}  // namespace ladder

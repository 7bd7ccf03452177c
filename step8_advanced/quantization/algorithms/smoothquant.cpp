#include "step8_advanced/quantization/algorithms/smoothquant.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "step1_layers/core/error.h"

namespace ladder {

// >>> task 8.3.smooth: scales of activations and weights, and where they are folded in
Tensor smoothquant_scales(const Tensor& max_abs_x, std::span<const Tensor> linears, double alpha,
                          std::string_view name) {
  LADDER_CHECK(alpha >= 0 && alpha <= 1, "{}: a smoothing strength of {}; expected 0 to 1", name, alpha);
  LADDER_CHECK(!linears.empty(), "{}: no linear takes its output; expected at least one", name);
  expect_dtype(max_abs_x, DType::f32, name);
  expect_shape(max_abs_x, {-1}, name);
  const int64_t k = max_abs_x.dim(0);
  constexpr float kFloor = 1e-5f;
  std::vector<float> max_abs_w(static_cast<size_t>(k), kFloor);
  for (const Tensor& linear : linears) {
    expect_shape(linear, {-1, k}, name);
    for (int64_t row = 0; row < linear.dim(0); ++row) {
      for (int64_t i = 0; i < k; ++i) {
        const float magnitude = std::fabs(linear.data<float>()[row * k + i]);
        LADDER_CHECK(std::isfinite(magnitude),
                     "{}: a weight in column {} is {}, which should be a finite number", name, i, magnitude);
        max_abs_w[static_cast<size_t>(i)] = std::max(max_abs_w[static_cast<size_t>(i)], magnitude);
      }
    }
  }
  const Tensor scales = Tensor::empty({k}, DType::f32);
  for (int64_t i = 0; i < k; ++i) {
    const float magnitude = max_abs_x.data<float>()[i];
    LADDER_CHECK(std::isfinite(magnitude),
                 "{}: the largest activation of feature {} is {}, which should be a finite number", name, i,
                 magnitude);
    const double scale = std::pow(std::max(magnitude, kFloor), alpha) /
                         std::pow(static_cast<double>(max_abs_w[static_cast<size_t>(i)]), 1 - alpha);
    scales.data<float>()[i] = std::max(static_cast<float>(scale), kFloor);
  }
  return scales;
}
// <<< task 8.3.smooth

}  // namespace ladder

#pragma once
// The norms and rotation in double precision, with no rounding between them.
#include <cmath>
#include <vector>

#include "tests/support/numerics.h"

namespace ladder::testing {

inline std::vector<double> normed(const Tensor& x, const Tensor& weight, double eps) {
  std::vector<double> values = to_double(x);
  const auto gains = to_double(weight);
  for (size_t row = 0; row < values.size(); row += gains.size()) {
    double sum = 0;
    for (size_t i = 0; i < gains.size(); ++i) sum += values[row + i] * values[row + i];
    const double scale = 1 / std::sqrt(sum / static_cast<double>(gains.size()) + eps);
    for (size_t i = 0; i < gains.size(); ++i) values[row + i] *= scale * gains[i];
  }
  return values;
}

inline std::vector<double> layer_normed(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                        double eps) {
  std::vector<double> values = to_double(x);
  const auto gains = to_double(weight), shifts = to_double(bias);
  const auto width = static_cast<double>(gains.size());
  for (size_t row = 0; row < values.size(); row += gains.size()) {
    double mean = 0, variance = 0;
    for (size_t i = 0; i < gains.size(); ++i) mean += values[row + i] / width;
    for (size_t i = 0; i < gains.size(); ++i)
      variance += (values[row + i] - mean) * (values[row + i] - mean) / width;
    for (size_t i = 0; i < gains.size(); ++i)
      values[row + i] = (values[row + i] - mean) / std::sqrt(variance + eps) * gains[i] + shifts[i];
  }
  return values;
}

// RMSNorm where there is a weight, then the rotation of pairs that are half the table's width apart.
inline std::vector<double> rotated(const Tensor& x, const Tensor& weight, double eps, const Tensor& positions,
                                   const Tensor& table) {
  std::vector<double> values = weight.defined() ? normed(x, weight, eps) : to_double(x);
  const int64_t heads = x.dim(1), dim = x.dim(2), half = table.dim(1) / 2;
  for (int64_t row = 0; row < x.dim(0) * heads; ++row) {
    const float* angles = table.data<float>() + positions.at<int32_t>({row / heads}) * table.stride(0);
    double* head = values.data() + row * dim;
    for (int64_t i = 0; i < half; ++i) {
      const double first = head[i], second = head[half + i];
      head[i] = first * angles[i] - second * angles[half + i];
      head[half + i] = second * angles[i] + first * angles[half + i];
    }
  }
  return values;
}

}  // namespace ladder::testing

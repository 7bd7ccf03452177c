#pragma once
// Task 8.3: AWQ (Lin et al., 2023, arXiv 2306.00978): a weight matters as much as the activations that it meets.
// Multiplying a column by s before rounding, and its input by 1 / s, divides its share of the rounding error by s,
// as long as the group's scale stays: so the columns with large activations are made larger, a little.
//
//   X = mean|x| of each feature,  V = mean over rows of |w| / the largest |w| of its group
//   for r in 0, 1/20, ... 19/20:
//     s = X^r / (V^(1-r) + 1e-4), at least 1e-4, divided by sqrt(max(s) * min(s))
//     error(r) = |x (Q(W s) / s - W)^T|^2
//   take the s of the least error, or 1 where none is below error of s = 1
//
//   then, for each group of each row: of 1, 0.95, ... 0.5 times the group's largest |w|, take the first for which
//   clipping to it and rounding changes the group's part of the outputs least
//
// Both are searches: nothing is differentiated, nothing of H is inverted, so a few hundred rows of calibration are
// enough. The error with s = 1 is among those compared, so the result is never worse than rounding to nearest on
// these rows.
//
// Time: 21 n k m multiplications for the scales and 11 n k m for clipping, m rows of x; memory 3 n k floats.
#include <functional>
#include <span>
#include <string_view>

#include "step1_layers/core/tensor.h"
#include "step8_advanced/quantization/scheme.h"

namespace ladder {

struct AwqOptions {
  int ratios = 20;
  bool duo_scaling = true;  // false: s = X^r, and the weights have no say
};

struct AwqScales {
  Tensor scales;              // f32 [k]: x / scales, W * scales (fold_scales.h)
  double ratio = 0;           // r
  bool identity = true;       // no r was better than s = 1
  double error = 0;           // with these scales
  double identity_error = 0;  // with 1: of rounding to nearest
};

// What the block of the model that is searched loses when its linears are rounded under these scales.
using ScaleError = std::function<double(const Tensor& scales)>;

// linears [n, k] f32: all that take x, which share the scales. mean_abs_x [k]: Hessian::mean_abs(). Errors name the
// layer: shapes; a mean that is below 0 or not a finite number, with its `feature 5` (the mean of x itself, instead of
// its magnitudes, has both signs).
AwqScales search_awq_scales(const Tensor& mean_abs_x, std::span<const Tensor> linears,
                            const QuantizationArgs& args, std::string_view name, const ScaleError& error,
                            const AwqOptions& options = {});

// The error of the linears' own outputs on sample rows x [m, k] f32: the sum over them of |x (Q(W s) / s - W)^T|^2
// / m.
double awq_error(const Tensor& x, std::span<const Tensor> linears, const QuantizationArgs& args,
                 const Tensor& scales, std::string_view name);
// As small as it becomes.
AwqScales search_awq_scales(const Tensor& x, const Tensor& mean_abs_x, std::span<const Tensor> linears,
                            const QuantizationArgs& args, std::string_view name,
                            const AwqOptions& options = {});

// The weight [n, k] with every group (or row, where the scheme has one scale per channel) clipped to [-c, c] for
// its best c. Not for q and k, says the paper: their products meet in the attention's scores. Error: another
// strategy.
Tensor clip_awq(const Tensor& x, const Tensor& weight, const QuantizationArgs& args, std::string_view name);

}  // namespace ladder

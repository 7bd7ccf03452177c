#include "step8_advanced/quantization/algorithms/awq.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step1_layers/linear/matmul.h"
#include "step8_advanced/quantization/numbers/weight_grids.h"

namespace ladder {
namespace {

constexpr int64_t kStrip = 256;  // rows of a product that are there at a time

// to[row] = |x * errors[row]|^2, for rows [n, k] that may be strided.
void output_errors(const Tensor& x, const Tensor& errors, std::vector<double>& to) {
  OpContext ctx;
  ctx.batch_invariant = true;
  const int64_t n = errors.dim(0), m = x.dim(0);
  const Tensor strip = Tensor::empty({std::min(kStrip, n), m}, DType::f32);
  to.resize(static_cast<size_t>(n));
  for (int64_t begin = 0; begin < n; begin += kStrip) {
    const int64_t rows = std::min(kStrip, n - begin);
    matmul(ctx, errors.narrow(0, begin, rows), x, Tensor(), strip.rows(rows));
    parallel_for(rows, 4, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        double sum = 0;
        for (int64_t i = 0; i < m; ++i) {
          const double output = strip.data<float>()[row * m + i];
          sum += output * output;
        }
        to[static_cast<size_t>(begin + row)] = sum;
      }
    });
  }
}

void check_inputs(const Tensor& x, int64_t k, std::string_view name) {
  expect_dtype(x, DType::f32, name);
  expect_shape(x, {-1, k}, name);
  LADDER_CHECK(x.dim(0) > 0, "{}: no rows of activations; expected some hundred", name);
  for (int64_t row = 0; row < x.dim(0); ++row)
    for (int64_t i = 0; i < k; ++i)
      LADDER_CHECK(std::isfinite(x.data<float>()[row * x.stride(0) + i]),
                   "{}: activation {} in column {}, which should be a finite number", name,
                   x.data<float>()[row * x.stride(0) + i], i);
}

// The columns that share a scale.
int64_t group_of(const QuantizationArgs& args, int64_t k, std::string_view name) {
  if (args.strategy != ScaleStrategy::group) return k;
  LADDER_CHECK(args.group_size > 0 && k % args.group_size == 0,
               "{}: expected groups that divide {} columns, got {}", name, k, args.group_size);
  return args.group_size;
}

// Q(W s) / s - W, for each of the rows.
Tensor rounding_errors(const Tensor& weight, const Tensor& scales, const QuantizationArgs& args,
                       std::string_view name) {
  const int64_t n = weight.dim(0), k = weight.dim(1);
  const Tensor errors = Tensor::empty({n, k}, DType::f32);
  const float* s = scales.data<float>();
  for (int64_t i = 0; i < n * k; ++i) errors.data<float>()[i] = weight.data<float>()[i] * s[i % k];
  const WeightGrids grids = make_weight_grids(errors, args, name);
  parallel_for(n, 4, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      for (int64_t i = 0; i < k; ++i) {
        float& number = errors.data<float>()[row * k + i];
        number = round_to_grid(number, grids.at(row, i), args) / s[i] - weight.data<float>()[row * k + i];
      }
    }
  });
  return errors;
}

}  // namespace

double awq_error(const Tensor& x, std::span<const Tensor> linears, const QuantizationArgs& args,
                 const Tensor& scales, std::string_view name) {
  std::vector<double> of_row;
  double sum = 0;
  for (const Tensor& linear : linears) {
    output_errors(x, rounding_errors(linear, scales, args, name), of_row);
    for (const double row : of_row) sum += row / static_cast<double>(x.dim(0));
  }
  return sum;
}

// >>> task 8.3.awq: search the scales
namespace {

// V: how large a column's weights are within their groups, from 0 to 1.
std::vector<double> mean_share_of_group(std::span<const Tensor> linears, int64_t group) {
  const int64_t k = linears.front().dim(1);
  std::vector<double> share(static_cast<size_t>(k));
  int64_t rows = 0;
  for (const Tensor& linear : linears) {
    rows += linear.dim(0);
    for (int64_t row = 0; row < linear.dim(0); ++row) {
      const float* w = linear.data<float>() + row * k;
      for (int64_t begin = 0; begin < k; begin += group) {
        float largest = 0;
        for (int64_t i = begin; i < begin + group; ++i) largest = std::max(largest, std::fabs(w[i]));
        if (largest == 0) continue;
        for (int64_t i = begin; i < begin + group; ++i)
          share[static_cast<size_t>(i)] += std::fabs(w[i]) / largest;
      }
    }
  }
  for (double& number : share) number /= static_cast<double>(rows);
  return share;
}

Tensor scales_of_ratio(double ratio, const Tensor& mean_abs_x, const std::vector<double>& share,
                       bool duo_scaling) {
  const int64_t k = mean_abs_x.dim(0);
  std::vector<double> scales(static_cast<size_t>(k));
  for (int64_t i = 0; i < k; ++i) {
    const double x = std::pow(static_cast<double>(mean_abs_x.data<float>()[i]), ratio);
    const double w = duo_scaling ? std::pow(share[static_cast<size_t>(i)], 1 - ratio) + 1e-4 : 1.0;
    scales[static_cast<size_t>(i)] = std::max(x / w, 1e-4);
  }
  const auto [least, largest] = std::minmax_element(scales.begin(), scales.end());
  const double middle = std::sqrt(*least * *largest);
  const Tensor result = Tensor::empty({k}, DType::f32);
  for (int64_t i = 0; i < k; ++i)
    result.data<float>()[i] = static_cast<float>(scales[static_cast<size_t>(i)] / middle);
  return result;
}

}  // namespace

AwqScales search_awq_scales(const Tensor& mean_abs_x, std::span<const Tensor> linears,
                            const QuantizationArgs& args, std::string_view name, const ScaleError& error,
                            const AwqOptions& options) {
  LADDER_CHECK(!linears.empty(), "{}: no linear takes these activations; expected at least one", name);
  const int64_t k = linears.front().dim(1);
  for (const Tensor& linear : linears) {
    expect_dtype(linear, DType::f32, name);
    expect_shape(linear, {-1, k}, name);
  }
  expect_dtype(mean_abs_x, DType::f32, name);
  expect_shape(mean_abs_x, {k}, name);
  for (int64_t i = 0; i < k; ++i) {
    const float mean = mean_abs_x.data<float>()[i];
    LADDER_CHECK(mean >= 0 && std::isfinite(mean), "{}: a mean of {} of feature {}; expected the mean of |x|",
                 name, mean, i);
  }
  AwqScales best;
  best.scales = Tensor::empty({k}, DType::f32);
  std::fill_n(best.scales.data<float>(), k, 1.0f);
  best.error = best.identity_error = error(best.scales);
  const std::vector<double> share = mean_share_of_group(linears, group_of(args, k, name));
  for (int i = 0; i < options.ratios; ++i) {
    const double ratio = static_cast<double>(i) / options.ratios;
    const Tensor scales = scales_of_ratio(ratio, mean_abs_x, share, options.duo_scaling);
    const double of_ratio = error(scales);
    if (!(of_ratio < best.error)) continue;
    best = {.scales = scales,
            .ratio = ratio,
            .identity = false,
            .error = of_ratio,
            .identity_error = best.identity_error};
  }
  return best;
}

AwqScales search_awq_scales(const Tensor& x, const Tensor& mean_abs_x, std::span<const Tensor> linears,
                            const QuantizationArgs& args, std::string_view name, const AwqOptions& options) {
  LADDER_CHECK(!linears.empty(), "{}: no linear takes these activations; expected at least one", name);
  check_inputs(x, linears.front().dim(1), name);
  const auto error = [&](const Tensor& scales) { return awq_error(x, linears, args, scales, name); };
  return search_awq_scales(mean_abs_x, linears, args, name, error, options);
}

// <<< task 8.3.awq

Tensor clip_awq(const Tensor& x, const Tensor& weight, const QuantizationArgs& args, std::string_view name) {
  LADDER_CHECK(args.strategy == ScaleStrategy::group || args.strategy == ScaleStrategy::channel,
               "{}: clipping looks at one group of a row at a time; expected a group or channel strategy",
               name);
  const int64_t n = weight.dim(0), k = weight.dim(1), group = group_of(args, k, name);
  check_inputs(x, k, name);
  make_weight_grids(weight, args, name);  // for its checks
  const Tensor result = weight.clone(), errors = Tensor::empty({n, group}, DType::f32);
  for (int64_t begin = 0; begin < k; begin += group) {
    const Tensor x_of_group = x.narrow(1, begin, group);
    std::vector<double> least(static_cast<size_t>(n), std::numeric_limits<double>::infinity()), of_row;
    std::vector<float> largest(static_cast<size_t>(n)), best(static_cast<size_t>(n));
    for (int step = 0; step <= 10; ++step) {
      const float ratio = 1.0f - static_cast<float>(step) / 20;
      parallel_for(n, 4, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
          const float* w = weight.data<float>() + row * k + begin;
          float* clipped = errors.data<float>() + row * group;
          float& limit = largest[static_cast<size_t>(row)];
          if (step == 0)
            for (int64_t i = 0; i < group; ++i) limit = std::max(limit, std::fabs(w[i]));
          for (int64_t i = 0; i < group; ++i) clipped[i] = std::clamp(w[i], -limit * ratio, limit * ratio);
          const Grid grid = make_grid(std::span<const float>(clipped, static_cast<size_t>(group)), args);
          for (int64_t i = 0; i < group; ++i) clipped[i] = round_to_grid(clipped[i], grid, args) - w[i];
        }
      });
      output_errors(x_of_group, errors, of_row);
      for (size_t row = 0; row < of_row.size(); ++row) {
        if (!(of_row[row] < least[row])) continue;
        least[row] = of_row[row];
        best[row] = largest[row] * ratio;
      }
    }
    for (int64_t row = 0; row < n; ++row) {
      float* w = result.data<float>() + row * k + begin;
      const float limit = best[static_cast<size_t>(row)];
      for (int64_t i = 0; i < group; ++i) w[i] = std::clamp(w[i], -limit, limit);
    }
  }
  return result;
}

}  // namespace ladder

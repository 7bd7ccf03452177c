#include "step8_advanced/quantization/algorithms/fold_scales.h"

#include <cmath>

#include "step1_layers/core/error.h"

namespace ladder {
namespace {

void check(const Tensor& tensor, std::initializer_list<int64_t> dims, std::string_view name) {
  expect_dtype(tensor, DType::f32, name);
  expect_shape(tensor, dims, name);
  LADDER_CHECK(tensor.is_contiguous() && tensor.device().is_cpu(),
               "{}: expected contiguous tensors on the CPU", name);
}

void check_linears(std::span<const Tensor> linears, const Tensor& scales, std::string_view name) {
  check(scales, {-1}, name);
  LADDER_CHECK(!linears.empty(), "{}: no linear takes its output; expected at least one", name);
  for (const Tensor& linear : linears) check(linear, {-1, scales.dim(0)}, name);
  for (int64_t i = 0; i < scales.dim(0); ++i) {
    const float scale = scales.data<float>()[i];
    LADDER_CHECK(scale > 0 && std::isfinite(scale),
                 "{}: the scale of feature {} is {}; expected a number above 0", name, i, scale);
  }
}

}  // namespace

// >>> task 8.3.smooth: scales of activations and weights, and where they are folded in
namespace {

void multiply_columns(std::span<const Tensor> linears, const Tensor& scales) {
  const int64_t k = scales.dim(0);
  for (const Tensor& linear : linears)
    for (int64_t row = 0; row < linear.dim(0); ++row)
      for (int64_t i = 0; i < k; ++i) linear.data<float>()[row * k + i] *= scales.data<float>()[i];
}

// Row i of a tensor [k] or [k, any] by scale i.
void divide_rows(const Tensor& tensor, const Tensor& scales) {
  if (!tensor.defined()) return;
  const int64_t k = scales.dim(0), width = tensor.numel() / k;
  for (int64_t i = 0; i < k; ++i)
    for (int64_t j = 0; j < width; ++j) tensor.data<float>()[i * width + j] /= scales.data<float>()[i];
}

}  // namespace

void fold_scales(const NormBefore& norm, std::span<const Tensor> linears, const Tensor& scales,
                 std::string_view name) {
  check_linears(linears, scales, name);
  check(norm.gain, {scales.dim(0)}, name);
  if (norm.bias.defined()) check(norm.bias, {scales.dim(0)}, name);
  const auto add_to_gain = [&](float term) {
    for (int64_t i = 0; i < scales.dim(0); ++i) norm.gain.data<float>()[i] += term;
  };
  if (norm.gain_plus_one) add_to_gain(1.0f);
  divide_rows(norm.gain, scales);
  if (norm.gain_plus_one) add_to_gain(-1.0f);
  divide_rows(norm.bias, scales);
  multiply_columns(linears, scales);
}

void fold_scales(const LinearBefore& before, std::span<const Tensor> linears, const Tensor& scales,
                 std::string_view name) {
  check_linears(linears, scales, name);
  check(before.weight, {scales.dim(0), -1}, name);
  if (before.bias.defined()) check(before.bias, {scales.dim(0)}, name);
  divide_rows(before.weight, scales);
  divide_rows(before.bias, scales);
  multiply_columns(linears, scales);
}
// <<< task 8.3.smooth

}  // namespace ladder

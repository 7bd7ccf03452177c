#include "step8_advanced/quantization/algorithms/incoherence.h"

#include <algorithm>
#include <cmath>

#include "step1_layers/core/error.h"
#include "step1_layers/linear/matmul.h"
#include "step8_advanced/quantization/algorithms/hadamard.h"
#include "step8_advanced/quantization/numbers/quantize_weight.h"

namespace ladder {
namespace {

// Rows and columns exchanged.
Tensor transposed(const Tensor& matrix) {
  const int64_t n = matrix.dim(0), k = matrix.dim(1);
  const Tensor result = Tensor::empty({k, n}, DType::f32);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < k; ++j) result.data<float>()[j * n + i] = matrix.data<float>()[i * k + j];
  return result;
}

void check_weight(const Tensor& weight) {
  expect_dtype(weight, DType::f32, "a weight");
  expect_shape(weight, {-1, -1}, "a weight");
}

}  // namespace

// >>> task 8.3.incoherence: random signs and a Hadamard matrix on both sides of a weight, before it is rounded and undone after
namespace {

// Two of one seed, with signs of their own even where n is k.
HadamardRotation of_inputs(int64_t k, uint64_t seed) {
  return HadamardRotation(k, 2 * seed);
}
HadamardRotation of_outputs(int64_t n, uint64_t seed) {
  return HadamardRotation(n, 2 * seed + 1);
}

}  // namespace

double incoherence_of(const Tensor& weight) {
  check_weight(weight);
  double largest = 0, squares = 0;
  for (int64_t i = 0; i < weight.numel(); ++i) {
    const double w = weight.data<float>()[i];
    largest = std::max(largest, std::abs(w));
    squares += w * w;
  }
  return squares > 0 ? largest * std::sqrt(static_cast<double>(weight.numel()) / squares) : 0;
}

double incoherence_bound(int64_t n, int64_t k, double delta) {
  return 2 * std::log(4 * static_cast<double>(n) * static_cast<double>(k) / delta);
}

Tensor make_incoherent(const Tensor& weight, uint64_t seed) {
  check_weight(weight);
  const Tensor rows = weight.clone();
  of_inputs(weight.dim(1), seed).rotate(rows);
  const Tensor columns = transposed(rows);
  of_outputs(weight.dim(0), seed).rotate(columns);
  return transposed(columns);
}

Tensor undo_incoherence(const Tensor& weight, uint64_t seed) {
  check_weight(weight);
  const Tensor columns = transposed(weight);
  of_outputs(weight.dim(0), seed).rotate_back(columns);
  const Tensor rows = transposed(columns);
  of_inputs(weight.dim(1), seed).rotate_back(rows);
  return rows;
}

QuantizedWeight quantize_incoherent(const Tensor& weight, const QuantizationArgs& args,
                                    const std::string& name, uint64_t seed) {
  return quantize_weight(make_incoherent(weight, seed), args, name);
}

void multiply_incoherent(const OpContext& ctx, const Tensor& rounded, const Tensor& x, uint64_t seed,
                         const Tensor& out) {
  const Tensor turned = x.clone();
  of_inputs(rounded.dim(1), seed).rotate(turned);
  matmul(ctx, turned, rounded, {}, out);
  of_outputs(rounded.dim(0), seed).rotate_back(out);
}
// <<< task 8.3.incoherence

}  // namespace ladder

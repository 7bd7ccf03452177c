#pragma once
// Task 8.4: the product of a linear whose weight is quantized.
//
//   out[i][j] = sum over k of x'[i][k] * w[j][k]  (+ bias[j])
//
//   w   what the codes stand for (quantized_weight.h), never written out whole
//   x'  x itself, or x rounded as `activations` says (round_activations.h)
//
// A weight that is read from memory once per token costs its bytes: 4 bits instead of 16 is a quarter of the time, if
// unpacking costs less than waiting. Products are summed in float at least and of integers exactly; the sum is rounded
// once, to out's dtype.
//
// What is not finite: without rounding, x's NaN or infinity makes its row of out NaN or infinite. Rounded, a row of x with
// a NaN gives a row of NaN; infinity does where the scale is made of the row, and saturates where the scale is given.
#include <cstdint>
#include <optional>
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"
#include "step8_advanced/quantization/quantized_weight.h"
#include "step8_advanced/quantization/scheme.h"

namespace ladder {

struct QuantizedMatmulArgs {
  Tensor x;  // [m, k] f32, bf16 or f16
  // [n, k]. Precondition, which whoever loads it has checked: scales are finite, no code is a NaN, columns are in range.
  const QuantizedWeight* weight = nullptr;
  // nullopt: x is taken as it is. Served: dynamic per token; static per tensor, symmetric; dynamic per group.
  std::optional<QuantizationArgs> activations;
  float input_scale = 1;  // of static activations; NVFP4's G
  Tensor bias;            // [n] x's dtype, or undefined
  Tensor out;             // [m, n] x's dtype, or f32
};

std::span<const Variant<QuantizedMatmulArgs>> quantized_matmul_variants();

// The row of the table that quantized_matmul() runs for these arguments, and why.
Choice<QuantizedMatmulArgs> choose_quantized_matmul(const OpContext& ctx, const QuantizedMatmulArgs& args);

// Rows of x, out and of the weight's tensors may be strided, the elements of a row are adjacent. m = 0 does nothing.
// Error: shapes, dtypes or activations that do not fit.
void quantized_matmul(const OpContext& ctx, const QuantizedMatmulArgs& args);

}  // namespace ladder

#pragma once
// Task 8.4: the product of a linear of whose weight two of every four neighbours are 0.
//
//   out[i][j] = sum over k of x[i][k] * weight[j][k]  (+ bias[j])
//
// It is the dense product (step1_layers/linear/matmul.h): zeros change no sum. What they save is memory traffic, 7/16 of the weight's,
// where few rows wait for it, and half of the multiplications on tensor cores that know 2:4 (NVIDIA, since compute capability 8.0),
// which take from four neighbours of x the two that meet a value.
#include <cstdint>
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"
#include "step8_advanced/quantization/kernels/sparse_weight.h"

namespace ladder {

struct SparseMatmulArgs {
  Tensor x;                              // [m, k] of the weight's dtype
  const SparseWeight* weight = nullptr;  // [n, k]
  Tensor bias;                           // [n] x's dtype, or undefined
  Tensor out;                            // [m, n] x's dtype, or f32
};

std::span<const Variant<SparseMatmulArgs>> sparse_matmul_variants();

// The row of the table that sparse_matmul() runs for these arguments, and why.
Choice<SparseMatmulArgs> choose_sparse_matmul(const OpContext& ctx, const SparseMatmulArgs& args);

// Rows of x and out may be strided, the elements of a row are adjacent. m = 0 does nothing.
// Error: shapes or dtypes that do not fit.
void sparse_matmul(const OpContext& ctx, const SparseMatmulArgs& args);

}  // namespace ladder

#pragma once
// The matrix product that linear layers and the LM head are made of.
//
//   out[i][j] = sum over k of x[i][k] * weight[j][k]  (+ bias[j])
//
// The weight stays as checkpoints store it, [n, k] with rows adjacent: one copy in memory, no packing. Both
// operands are then read along k, so an output element is a dot product of two contiguous rows. Products are
// summed in float; the sum is rounded once, to out's dtype.
#include <cstdint>
#include <span>
#include <vector>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

struct MatmulArgs {
  Tensor x;       // [m, k] f32, bf16 or f16
  Tensor weight;  // [n, k], x's dtype
  Tensor bias;    // [n] x's dtype, or undefined
  Tensor out;     // [m, n] x's dtype, or f32 (logits)
};

std::span<const Variant<MatmulArgs>> matmul_variants();

// A rung that asks a library for its kernel does so for a class of row counts, not for each: a search takes a
// quarter of a millisecond, and a kernel that runs for the first time is loaded, which takes several and
// waits until the GPU is idle. The largest number of rows in the class of `rows`: each of the first 16 is its
// own, then eights up to 256, 64s up to 1024, half octaves beyond.
int64_t last_of_row_class(int64_t rows);

// Ascending, the largest number of rows of each class, the last one cut at `max_rows`: products with each of
// them load every kernel that max_rows rows or fewer can need.
std::vector<int64_t> row_classes(int64_t max_rows);

// The row that matmul() runs for these arguments, and why.
Choice<MatmulArgs> choose_matmul(const OpContext& ctx, const MatmulArgs& args);

// Rows of x, weight and out may be strided (a narrow() of a wider tensor), the elements of a row are
// adjacent. m = 0 does nothing. Error: shapes or dtypes that do not fit together.
void matmul(const OpContext& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
            const Tensor& out);

}  // namespace ladder

#pragma once
// Before and after a product of 8-bit codes on a GPU (cublaslt_8bit_cuda.cpp): x rounded to codes, and sums of codes
// made numbers.
#include "step1_layers/core/arena.h"
#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step8_advanced/quantization/scheme.h"

namespace ladder {

// rms_norm (rms_norm.h) of rows of up to kMaxNormedColumns numbers, before they are rounded.
struct RowNorm {
  Tensor weight = {};  // [k], packed; undefined: x is not normed
  double eps = 0;
};
inline constexpr int64_t kMaxNormedColumns = 16384;

// Rounded rows: codes of i8 or E4M3, and their scales.
struct RowCodes {
  Tensor codes;   // u8 [m, k], contiguous
  Tensor scales;  // f32 [m]
};

// Rows of x, packed (packed.h), as round_activations() has them. A row that has none: scale NaN, codes 0. The scheme is symmetric, one
// scale for a row.
void quantize_rows_cuda(const OpContext& ctx, const Tensor& x, const QuantizationArgs& activations,
                        float input_scale, const RowCodes& to, const RowNorm& norm = {});
// The same in memory of an arena.
RowCodes quantized_rows(const OpContext& ctx, Arena& arena, const Tensor& x,
                        const QuantizationArgs& activations, float input_scale, const RowNorm& norm = {});

// out[i][j] = sums[i][j] * weight_scales[j] * row_scales[i] (+ bias[j]), rounded once; as store_row() in double. sums [m, n]
// contiguous, i32 or f32; n a multiple of 4, rows of out begin at multiples of 16 bytes.
void scale_sums_cuda(const OpContext& ctx, const Tensor& sums, const Tensor& row_scales,
                     const Tensor& weight_scales, const Tensor& bias, const Tensor& out);

}  // namespace ladder

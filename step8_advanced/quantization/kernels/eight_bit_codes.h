#pragma once
// Which products a GPU makes of 8-bit codes on both sides (cublaslt_8bit_cuda.cpp, rows_stream_8bit_cuda.cu). Whoever loads such a
// weight leaves its codes as they are.
#include <optional>

#include "step8_advanced/quantization/kernels/quantized_matmul.h"

namespace ladder {

inline constexpr int64_t kCodesAlignment = 16;  // of rows, in bytes

// A weight with codes of 8 bits, in the order of x's columns, one scale for a row and no zero points; activations of the same kind of
// codes, without zero points either, whose grid is a row's; rows of whole packs, and sums that fit 31 bits.
bool are_multiplied_as_codes(const QuantizedWeight& weight,
                             const std::optional<QuantizationArgs>& activations);

// And so lies in memory, with an x of 16 bits.
bool takes_eight_bit_codes(const QuantizedWeight& weight, const std::optional<QuantizationArgs>& activations,
                           const Tensor& x);

}  // namespace ladder

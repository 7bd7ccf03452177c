#pragma once
// Kernel of the rungs for many rows of x: a few rows of the weight as floats, in the blocks' order (quantized_rows.h).
#include <cstdint>

#include "step1_layers/core/cpu_features.h"
#include "step8_advanced/quantization/kernels/quantized_rows.h"

namespace ladder {

// clang-format off
LADDER_DECLARE_FOR_EACH_ISA(
int64_t code_lanes();  // words of a block
// out[j - begin] = row j of the weight, for j in [begin, end); of `blocks` whole blocks each, beyond k whatever is finite.
void dequantize_rows(const QuantizedRows& weight, int64_t begin, int64_t end, float* out);
)
// clang-format on

}  // namespace ladder

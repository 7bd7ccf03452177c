#pragma once
// The rungs of quantized_matmul.h's table, and what they share. Their arguments have been checked.
#include "step8_advanced/quantization/kernels/quantized_matmul.h"

namespace ladder {

// One output from its sum of products in units of both scales. In double: every rung that sums integers exactly gives
// the same bits.
inline float scaled_sum(double sum, float row_scale, float bias) {
  return static_cast<float>(sum * static_cast<double>(row_scale) + static_cast<double>(bias));
}

void quantized_matmul_loop(const OpContext& ctx, const QuantizedMatmulArgs& args);

}  // namespace ladder

#pragma once
// A launch of the quantized rows_stream for each type of codes, in a file of its own as they compile slowly. Up to
// kMaxRowsStreamed rows of x, packed (packed.h), which is multiplied as it is.
#include "step8_advanced/quantization/kernels/quantized_matmul.h"

namespace ladder {

inline constexpr int64_t kMaxRowsStreamed = 16;

void rows_stream_int4(const OpContext& ctx, const QuantizedMatmulArgs& args);
void rows_stream_int8(const OpContext& ctx, const QuantizedMatmulArgs& args);
void rows_stream_fp8(const OpContext& ctx, const QuantizedMatmulArgs& args);

}  // namespace ladder

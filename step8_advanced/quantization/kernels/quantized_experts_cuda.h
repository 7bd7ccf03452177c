#pragma once
// The CUDA rungs of quantized_experts.h. Their arguments have been checked, and there are tokens.
#include "step8_advanced/quantization/kernels/quantized_experts.h"

namespace ladder {

void quantized_experts_naive(const OpContext& ctx, const QuantizedExpertsArgs& args);
bool quantized_experts_take_naive(const QuantizedExpertsArgs& args);

void quantized_experts_written_out(const OpContext& ctx, const QuantizedExpertsArgs& args);
bool quantized_experts_take_written_out(const QuantizedExpertsArgs& args);

void quantized_experts_stream(const OpContext& ctx, const QuantizedExpertsArgs& args);
bool quantized_experts_take_stream(const QuantizedExpertsArgs& args);

void quantized_experts_grouped(const OpContext& ctx, const QuantizedExpertsArgs& args);
bool quantized_experts_take_grouped(const QuantizedExpertsArgs& args);

// Whether both matrices are in records of which an expert has whole tiles, and rows are what tensor cores take: x of 16 bits, packed.
bool are_experts_in_tiles(const QuantizedExpertsArgs& args);

}  // namespace ladder

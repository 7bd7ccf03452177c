#pragma once
// The clear rungs of silu_and_mul.h and gelu.h. Their arguments have been checked.
#include "step1_layers/activation/gelu.h"
#include "step1_layers/activation/silu_and_mul.h"

namespace ladder {

void silu_and_mul_loop(const OpContext& ctx, const SiluAndMulArgs& args);
void gelu_and_mul_loop(const OpContext& ctx, const GeluAndMulArgs& args);
void gelu_loop(const OpContext& ctx, const GeluArgs& args);

}  // namespace ladder

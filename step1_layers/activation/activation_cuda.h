#pragma once
// The CUDA rungs of silu_and_mul.h, gelu.h and relu.h. Their arguments have been checked.
#include "step1_layers/activation/gelu.h"
#include "step1_layers/activation/relu.h"
#include "step1_layers/activation/silu_and_mul.h"

namespace ladder {

void silu_and_mul_cuda(const OpContext& ctx, const SiluAndMulArgs& args);
void silu_and_mul_cuda_packed(const OpContext& ctx, const SiluAndMulArgs& args);
bool silu_and_mul_is_packed(const SiluAndMulArgs& args);

void gelu_and_mul_cuda(const OpContext& ctx, const GeluAndMulArgs& args);
void gelu_and_mul_cuda_packed(const OpContext& ctx, const GeluAndMulArgs& args);
bool gelu_and_mul_is_packed(const GeluAndMulArgs& args);

void gelu_cuda(const OpContext& ctx, const GeluArgs& args);
void gelu_cuda_packed(const OpContext& ctx, const GeluArgs& args);
bool gelu_is_packed(const GeluArgs& args);

void relu_cuda(const OpContext& ctx, const ReluArgs& args);
void relu_cuda_packed(const OpContext& ctx, const ReluArgs& args);
bool relu_is_packed(const ReluArgs& args);

}  // namespace ladder

#pragma once
// The CUDA rungs of rms_norm.h. Their arguments have been checked.
#include "step1_layers/norm/rms_norm.h"

namespace ladder {

void rms_norm_cuda_naive(const OpContext& ctx, const RmsNormArgs& args);
void rms_norm_cuda_block(const OpContext& ctx, const RmsNormArgs& args);
void rms_norm_cuda_registers(const OpContext& ctx, const RmsNormArgs& args);
bool rms_norm_fits_registers(const RmsNormArgs& args);

void fused_add_rms_norm_cuda_naive(const OpContext& ctx, const FusedAddRmsNormArgs& args);
void fused_add_rms_norm_cuda_block(const OpContext& ctx, const FusedAddRmsNormArgs& args);
void fused_add_rms_norm_cuda_registers(const OpContext& ctx, const FusedAddRmsNormArgs& args);
bool fused_add_rms_norm_fits_registers(const FusedAddRmsNormArgs& args);

}  // namespace ladder

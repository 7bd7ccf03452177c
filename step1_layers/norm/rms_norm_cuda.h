#pragma once
// The CUDA rungs of rms_norm.h. Args: RmsNormArgs or FusedAddRmsNormArgs, which have been checked.
#include "step1_layers/norm/rms_norm.h"

namespace ladder {

template <class Args>
void rms_norm_cuda_naive(const OpContext& ctx, const Args& args);
template <class Args>
void rms_norm_cuda_block(const OpContext& ctx, const Args& args);
template <class Args>
void rms_norm_cuda_registers(const OpContext& ctx, const Args& args);
template <class Args>
bool rms_norm_fits_registers(const Args& args);

}  // namespace ladder

#pragma once
// The CUDA rungs of layer_norm.h. Args: LayerNormArgs or FusedAddLayerNormArgs, which have been checked.
#include "step1_layers/norm/layer_norm.h"

namespace ladder {

template <class Args>
void layer_norm_cuda_naive(const OpContext& ctx, const Args& args);
template <class Args>
void layer_norm_cuda_packs(const OpContext& ctx, const Args& args);
template <class Args>
bool layer_norm_fits_packs(const Args& args);

}  // namespace ladder

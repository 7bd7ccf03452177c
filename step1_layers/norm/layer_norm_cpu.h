#pragma once
// The clear rungs of layer_norm.h. Their arguments have been checked.
#include "step1_layers/norm/layer_norm.h"

namespace ladder {

void layer_norm_loop(const OpContext& ctx, const LayerNormArgs& args);
void layer_norm_loop(const OpContext& ctx, const FusedAddLayerNormArgs& args);

}  // namespace ladder

#pragma once
// The clear rungs of rms_norm.h. Their arguments have been checked.
#include "step1_layers/norm/rms_norm.h"

namespace ladder {

void rms_norm_loop(const OpContext& ctx, const RmsNormArgs& args);
void rms_norm_loop(const OpContext& ctx, const FusedAddRmsNormArgs& args);

}  // namespace ladder

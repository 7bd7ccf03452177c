#pragma once
// The CUDA rung of qk_norm_rope_store.h. Its arguments have been checked.
#include "step1_layers/attention/qk_norm_rope_store.h"

namespace ladder {

void qk_norm_rope_store_cuda_fused(const OpContext& ctx, const QkNormRopeStoreArgs& args);
bool qk_norm_rope_store_can_fuse(const QkNormRopeStoreArgs& args);

}  // namespace ladder

#pragma once
// The CUDA rung of attention_with_store.h. Its arguments have been checked.
#include "step1_layers/attention/attention_with_store.h"

namespace ladder {

void attention_with_store_cuda_fused(const OpContext& ctx, const AttentionWithStoreArgs& args);
bool attention_with_store_can_fuse(const AttentionWithStoreArgs& args);

}  // namespace ladder

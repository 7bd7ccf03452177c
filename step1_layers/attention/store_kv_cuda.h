#pragma once
// The CUDA rungs of store_kv.h and qk_norm_rope_store.h. Their arguments have been checked.
#include "step1_layers/attention/qk_norm_rope_store.h"
#include "step1_layers/attention/store_kv.h"

namespace ladder {

void store_kv_cuda(const OpContext& ctx, const StoreKvArgs& args);
void store_kv_cuda_packed(const OpContext& ctx, const StoreKvArgs& args);
bool store_kv_is_packed(const StoreKvArgs& args);

void qk_norm_rope_store_cuda_fused(const OpContext& ctx, const QkNormRopeStoreArgs& args);
bool qk_norm_rope_store_can_fuse(const QkNormRopeStoreArgs& args);

}  // namespace ladder

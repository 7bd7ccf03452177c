#pragma once
// The CUDA rungs of what stores codes: store_kv and qk_norm_rope_store. Their arguments have been checked.
#include "step1_layers/attention/qk_norm_rope_store.h"
#include "step1_layers/attention/store_kv.h"

namespace ladder {

void store_kv_codes_cuda(const OpContext& ctx, const StoreKvArgs& args);

void qk_norm_rope_store_codes_cuda(const OpContext& ctx, const QkNormRopeStoreArgs& args);
bool qk_norm_rope_store_codes_can_fuse(const QkNormRopeStoreArgs& args);

}  // namespace ladder

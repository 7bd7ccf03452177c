#pragma once
// The CUDA rungs of store_kv.h. Their arguments have been checked.
#include "step1_layers/attention/store_kv.h"

namespace ladder {

void store_kv_cuda(const OpContext& ctx, const StoreKvArgs& args);
void store_kv_cuda_packed(const OpContext& ctx, const StoreKvArgs& args);
bool store_kv_is_packed(const StoreKvArgs& args);

}  // namespace ladder

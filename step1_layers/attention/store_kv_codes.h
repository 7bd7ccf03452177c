#pragma once
// store_kv for a cache of codes, on either device: heads become codes (kv_codes.h), the same on both.
#include "step1_layers/attention/store_kv.h"

namespace ladder {

// The arguments have been checked.
void store_kv_as_codes(const OpContext& ctx, const StoreKvArgs& args);

}  // namespace ladder

#pragma once
// Task 1.7: writes the new tokens' keys and values into the paged cache, each where slot_mapping says.
#include <span>

#include "step1_layers/attention/kv_cache.h"
#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

struct StoreKvArgs {
  Tensor k;             // [tokens, kv_heads, k_dim]
  Tensor v;             // [tokens, kv_heads, v_dim]
  Tensor slot_mapping;  // [tokens] i64; -1: a padding row, not written
  KvCacheView cache;    // the same dtype as k and v, or codes
};

std::span<const Variant<StoreKvArgs>> store_kv_variants();

// What store_kv does for a cache of codes: heads become codes (kv_codes.h), tokens split among threads.
void store_kv_codes(const StoreKvArgs& args);

// Error naming `op`, as for store_kv: for operators that contain the store.
void check_store_kv(const StoreKvArgs& args, std::string_view op);

// k and v may be views into the qkv rows. Rows of one call have different slots. k may have more rows than
// slot_mapping; the rest are padding. Error: shapes or dtypes that do not fit together, a slot outside the
// cache.
void store_kv(const OpContext& ctx, const Tensor& k, const Tensor& v, const Tensor& slot_mapping,
              const KvCacheView& cache);

}  // namespace ladder

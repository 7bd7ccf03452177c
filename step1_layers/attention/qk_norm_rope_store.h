#pragma once
// Tasks 1.3, 1.6 and 1.7 in one pass: what happens to q, k and v between their projection and attention.
//
//   q = rope(norm(q)),  k = rope(norm(k)),  cache[slot] = k, v      (the norms only where the model has them)
//
// The lowest rung is that sequence of operators; the fused rungs read each head once, keep it in registers or
// L1, and write it once.
#include <span>

#include "step1_layers/attention/kv_cache.h"
#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

struct QkNormRopeStoreArgs {
  Tensor q;              // [tokens, heads, head_dim], updated in place
  Tensor k;              // [tokens, kv_heads, head_dim]; afterwards unspecified: the cache has the result
  Tensor v;              // [tokens, kv_heads, v_dim]
  Tensor q_norm_weight;  // [head_dim], or undefined: no norm
  Tensor k_norm_weight;  // [head_dim], or undefined: no norm
  double eps = 1e-6;
  Tensor positions;     // [tokens] i32
  Tensor table;         // f32 [max_len, rotary_dim], from make_rope_table
  Tensor slot_mapping;  // [tokens] i64; -1: a padding row, not stored
  KvCacheView cache;
};

std::span<const Variant<QkNormRopeStoreArgs>> qk_norm_rope_store_variants();

// What qk_norm_rope_store throws, in the name of `op`.
void check_qk_norm_rope_store(const QkNormRopeStoreArgs& args, std::string_view op);

// q, k and v may be views into the qkv rows; all of one dtype (f32, bf16, f16), which is the cache's too.
// Error: as rms_norm, rotary_embedding and store_kv.
void qk_norm_rope_store(const OpContext& ctx, const QkNormRopeStoreArgs& args);

}  // namespace ladder

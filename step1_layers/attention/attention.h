#pragma once
// Task 1.7: causal attention over one sequence whose keys and values lie side by side (Vaswani et al., 2017,
// arXiv 1706.03762). The plain reference that the paged kernels are checked against.
//
//   out[t][h] = sum_j softmax_j(scale * q[t][h] . k[j][g]) v[j][g]      keys j <= num_keys - num_queries + t
//
// The queries are the last of the sequence's positions, so there may be fewer queries than keys (a chunk of a
// prompt, or one decoded token). Grouped queries (Ainslie et al., 2023, arXiv 2305.13245): heads / kv_heads
// query heads in a row share the key/value head g = h / (heads / kv_heads).
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

struct CausalAttentionArgs {
  Tensor q;  // [num_queries, heads, k_dim]
  Tensor k;  // [num_keys, kv_heads, k_dim], num_keys >= num_queries
  Tensor v;  // [num_keys, kv_heads, v_dim]
  double scale = 1.0;
  Tensor out;  // [num_queries, heads, v_dim]
};

std::span<const Variant<CausalAttentionArgs>> causal_attention_variants();

// f32, bf16 or f16, all tensors of one dtype, the last dimension dense; softmax and sums in float.
// Takes scratch from ctx.arena. Error: shapes or dtypes that do not fit together.
void causal_attention(const OpContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                      const Tensor& out);

}  // namespace ladder

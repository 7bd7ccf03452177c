#pragma once
// Tasks 1.3, 1.6 and 1.7: what happens between the qkv projection and the output projection.
//
//   q = rope(norm(q)),  k = rope(norm(k)),  cache[slot] = k, v,  out = attention(q, cache)
//
// The lowest rung is the two operators, qk_norm_rope_store and paged_attention. The rung above it is one
// kernel, for few sequences that decode.
#include <span>

#include "step1_layers/attention/paged_attention.h"
#include "step1_layers/attention/qk_norm_rope_store.h"

namespace ladder {

// `attention` has the q and the cache of `store`, and slot_mapping says where the block tables put each new
// row.
struct AttentionWithStoreArgs {
  QkNormRopeStoreArgs store;
  PagedAttentionArgs attention;
};

std::span<const Variant<AttentionWithStoreArgs>> attention_with_store_variants();

// Where one of the two operators has a forced kernel, the rung that runs it.
Choice<AttentionWithStoreArgs> choose_attention_with_store(const OpContext& ctx,
                                                           const AttentionWithStoreArgs& args);

// q and k are unspecified afterwards.
// Error: as the two operators.
void attention_with_store(const OpContext& ctx, const QkNormRopeStoreArgs& store,
                          const AttentionMetadata& metadata, double scale, const Tensor& out);

}  // namespace ladder

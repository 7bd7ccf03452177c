#pragma once
// Task 1.7: attention that reads keys and values through block tables (PagedAttention: Kwon et al., 2023,
// arXiv 2309.06180), with an online softmax (Milakov and Gimelshein, 2018, arXiv 1805.02867; FlashAttention:
// Dao et al., 2022, arXiv 2205.14135) in the fast kernels.
//
// One call serves any mix of query lengths: whole prompts, chunks of prompts, single decoded tokens. Row i of
// sequence s (i counted from query_start_loc[s]) stands at position seq_lens[s] - query_len + i and sees the
// keys at positions up to its own. The new keys must already be in the cache (store_kv.h). Without the mask
// (causal = false) every row sees all seq_lens[s] keys, of which there may be fewer than rows: attention to
// keys that are another's, as between ranks that share out a prompt. Where there are none, a row's lse is -inf or not
// written, and its result is nothing.
//
// Batch invariant variants, which are all of the CPU's and those that serve f32 on a GPU: the order of a
// row's sums is a function of its position alone, not of the other rows, the chunk it came in, the block size
// or which blocks hold the keys. Where a GPU cuts a sequence's keys into parts for more blocks to work on,
// the cut depends on the batch.
#include <cstdint>
#include <span>

#include "step1_layers/attention/kv_cache.h"
#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

struct PagedAttentionArgs {
  Tensor q;                    // [>= num_tokens, heads, k_dim]; rows past metadata.num_tokens are ignored
  KvCacheView cache;           // of kv_heads heads, heads % kv_heads == 0
  AttentionMetadata metadata;  // slot_mapping is not used
  double scale = 1.0;          // usually 1 / sqrt(k_dim)
  Tensor out;                  // [>= num_tokens, heads, v_dim]; rows past num_tokens are not written
  // Undefined, or f32 [>= num_tokens, heads]: log of the sum of e^score, to merge partial results.
  Tensor lse = {};
  bool causal = true;  // false: every row of a sequence sees all of its keys
};

// Few sequences are decoded by a cluster of blocks each, which is the fastest up to about so many keys; a
// longer one keeps more multiprocessors busy than a cluster has. So for up to kMaxFewSeqs sequences the choice
// of the kernel depends on max_seq_len, and a captured graph, which keeps its kernel, serves one side only.
inline constexpr int64_t kShortDecodeKeys = 8192, kMaxFewSeqs = 32;

std::span<const Variant<PagedAttentionArgs>> paged_attention_variants();

// What paged_attention throws for arguments that do not fit together, whatever block tables and lengths hold.
void check_paged_attention(const OpContext& ctx, const PagedAttentionArgs& args);

// q, cache and out are f32, bf16 or f16, all of one dtype; sums are in float. q may be a view into the qkv
// rows. Cache slots at and past seq_lens[s] are never part of a result, whatever they hold.
// Takes scratch from ctx.arena.
// Error: shapes or dtypes that do not fit together, a block id outside the cache, a sequence longer than its
// block table, or with fewer keys than rows under a mask.
void paged_attention(const OpContext& ctx, const Tensor& q, const KvCacheView& cache,
                     const AttentionMetadata& metadata, double scale, const Tensor& out,
                     const Tensor& lse = {});
// Likewise, without the mask.
void unmasked_paged_attention(const OpContext& ctx, const Tensor& q, const KvCacheView& cache,
                              const AttentionMetadata& metadata, double scale, const Tensor& out,
                              const Tensor& lse = {});

}  // namespace ladder

#include "step7_parallel/context/partial_attention.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "step1_layers/attention/paged_attention.h"
#include "step1_layers/core/error.h"

namespace ladder {
namespace {

// The keys are a paged cache of one block, which all sequences have: each of `rows` queries, its last.
void attend(const OpContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v, int64_t num_seqs,
            int64_t rows, double scale, const Tensor& out, const Tensor& lse) {
  const int64_t keys = k.dim(0);
  std::vector<int32_t> starts, lengths(static_cast<size_t>(num_seqs), static_cast<int32_t>(keys));
  for (int64_t seq = 0; seq <= num_seqs; ++seq) starts.push_back(static_cast<int32_t>(seq * rows));
  AttentionMetadata metadata;
  metadata.query_start_loc = Tensor::from<int32_t>(starts, {num_seqs + 1});
  metadata.seq_lens = Tensor::from<int32_t>(lengths, {num_seqs});
  metadata.block_tables = Tensor::zeros({num_seqs, 1}, DType::i32);
  metadata.num_seqs = num_seqs;
  metadata.num_tokens = num_seqs * rows;
  metadata.max_query_len = rows;
  metadata.max_seq_len = keys;
  auto one_block = [](const Tensor& t) { return t.view({1, t.dim(0), t.dim(1), t.dim(2)}); };
  paged_attention(ctx, q, {one_block(k), one_block(v)}, metadata, scale, out, lse);
}

// to [b, a, run] = from [a, b, run], runs of floats.
void swap_outer(const float* from, int64_t a, int64_t b, int64_t run, float* to) {
  for (int64_t i = 0; i < a; ++i)
    for (int64_t j = 0; j < b; ++j)
      std::memcpy(to + (j * a + i) * run, from + (i * b + j) * run, static_cast<size_t>(run) * sizeof(float));
}

}  // namespace

void causal_attention_of_last(const OpContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                              double scale, const Tensor& out, const Tensor& lse) {
  LADDER_CHECK(q.dim(0) >= 1 && q.dim(0) <= k.dim(0), "the last {} of {} keys' queries", q.dim(0), k.dim(0));
  attend(ctx, q, k, v, 1, q.dim(0), scale, out, lse);
}

// A mask hides nothing from a sequence's last query. So a few queries together are made one query with so many times the
// heads: keys are read once for all of them.
void unmasked_attention(const OpContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                        const Tensor& out, const Tensor& lse) {
  constexpr int64_t kTogether = 16;
  const int64_t heads = q.dim(1), dim = q.dim(2), kv_heads = k.dim(1), group = heads / kv_heads;
  for (int64_t row = 0; row < q.dim(0);) {
    const int64_t left = q.dim(0) - row, together = std::min(left, kTogether), seqs = left / together;
    const Tensor folded_q = Tensor::empty({seqs, together * heads, dim}, DType::f32);
    const Tensor folded_out = Tensor::empty(folded_q.shape(), DType::f32);
    const Tensor folded_lse = Tensor::empty({seqs, together * heads}, DType::f32);
    for (int64_t seq = 0; seq < seqs; ++seq)
      swap_outer(q.data<float>() + (row + seq * together) * heads * dim, together, kv_heads, group * dim,
                 folded_q.data<float>() + seq * together * heads * dim);
    attend(ctx, folded_q, k, v, seqs, 1, scale, folded_out, folded_lse);
    for (int64_t seq = 0; seq < seqs; ++seq) {
      swap_outer(folded_out.data<float>() + seq * together * heads * dim, kv_heads, together, group * dim,
                 out.data<float>() + (row + seq * together) * heads * dim);
      swap_outer(folded_lse.data<float>() + seq * together * heads, kv_heads, together, group,
                 lse.data<float>() + (row + seq * together) * heads);
    }
    row += seqs * together;
  }
}

}  // namespace ladder

#pragma once
// What the attention kernels share: the call as pointers and strides. Scores carry the factor log2(e), so
// that the softmax is made of exp2, which is one instruction, where exp is a multiplication and exp2.
#include <bit>

#include "step1_layers/attention/paged_attention_cuda.h"
#include "step1_layers/core/cuda_kernel.cuh"

namespace ladder {

inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

template <class T>
struct Attention {
  const T *q, *k, *v;
  T* out;
  float* lse;  // nullptr: not wanted
  const int32_t *query_start_loc, *seq_lens, *block_tables;
  int64_t q_token, q_head, out_token, out_head, lse_token, lse_head, table_stride;
  int64_t k_block, k_slot, k_head, v_block, v_slot, v_head;
  int64_t num_seqs, num_tokens, max_query_len;
  int heads, kv_heads, group, block_size, k_dim, v_dim;
  int causal;       // 1: a row sees a key more than the one before it; 0: there is no mask
  int block_shift;  // log2 of the block size, or -1: a division less where it is a power of two
  float scale;      // of the scores, times log2 e: e^(scale q k) = 2^(scale log2(e) q k)

  __device__ int query_len(int64_t seq) const { return query_start_loc[seq + 1] - query_start_loc[seq]; }
  __device__ void store_lse(int64_t row, int head, float largest, float sum) const {
    if (lse != nullptr) lse[row * lse_token + head * lse_head] = (largest + log2f(sum)) * kLn2;
  }
};

template <class T>
Attention<T> attention_call(const PagedAttentionArgs& args) {
  const Tensor &q = args.q, &k = args.cache.k, &v = args.cache.v, &out = args.out, &lse = args.lse;
  const AttentionMetadata& metadata = args.metadata;
  const auto block_size = static_cast<uint64_t>(args.cache.block_size());
  return {.q = cuda_data<T>(q),
          .k = cuda_data<T>(k),
          .v = cuda_data<T>(v),
          .out = cuda_data<T>(out),
          .lse = cuda_data<float>(lse),
          .query_start_loc = cuda_data<int32_t>(metadata.query_start_loc),
          .seq_lens = cuda_data<int32_t>(metadata.seq_lens),
          .block_tables = cuda_data<int32_t>(metadata.block_tables),
          .q_token = q.stride(0),
          .q_head = q.stride(1),
          .out_token = out.stride(0),
          .out_head = out.stride(1),
          .lse_token = lse.defined() ? lse.stride(0) : 0,
          .lse_head = lse.defined() ? lse.stride(1) : 0,
          .table_stride = metadata.block_tables.stride(0),
          .k_block = k.stride(0),
          .k_slot = k.stride(1),
          .k_head = k.stride(2),
          .v_block = v.stride(0),
          .v_slot = v.stride(1),
          .v_head = v.stride(2),
          .num_seqs = metadata.num_seqs,
          .num_tokens = metadata.num_tokens,
          .max_query_len = metadata.max_query_len,
          .heads = static_cast<int>(q.dim(1)),
          .kv_heads = static_cast<int>(k.dim(2)),
          .group = static_cast<int>(q.dim(1) / k.dim(2)),
          .block_size = static_cast<int>(args.cache.block_size()),
          .k_dim = static_cast<int>(q.dim(2)),
          .v_dim = static_cast<int>(v.dim(3)),
          .causal = args.causal ? 1 : 0,
          .block_shift = std::has_single_bit(block_size) ? std::countr_zero(block_size) : -1,
          .scale = static_cast<float>(args.scale) * kLog2E};
}

// Whether a sequence may have one row: it leaves max_query_len - 1 rows of the bound unused. Exact for prompts of one length,
// one prompt included; otherwise the answer may be yes where there is none.
template <class T>
bool may_have_single_rows(const Attention<T>& a) {
  return a.num_seqs * a.max_query_len - a.num_tokens >= a.max_query_len - 1;
}

// Query rows of sequences with one row (decode) take paged_attention_split_decode_cuda.cu, the rest
// paged_attention_prefill_cuda.cu; a batch may hold both. `with_single`: the rest includes the single rows.
void attention_prefill(const OpContext& ctx, const PagedAttentionArgs& args, bool with_single);

}  // namespace ladder

#pragma once
// Task 1.7: the paged KV cache as the kernels see it (PagedAttention: Kwon et al., 2023, arXiv 2309.06180).
//
// The cache of one layer is a pool of blocks of `block_size` token slots. A sequence's tokens lie in
// whichever blocks its block table lists, so memory is given out block by block and never moves:
//
//   position p of sequence s  ->  block = block_tables[s][p / block_size]
//                                 slot  = block * block_size + p % block_size
#include <cstdint>

#include "step1_layers/core/tensor.h"

namespace ladder {

inline constexpr int64_t kKvScales = 2;  // numbers that go with a head's codes

enum class KvCacheKind : uint8_t { full };

// In what keys and values are kept (kv_codes.h). `automatic`: as the model computes them.
enum class KvCacheDType : uint8_t { automatic, fp8, int8, int4 };

// Bytes of `dim` values: as codes, and with all that is kept of a head of one token.
constexpr int64_t kv_code_bytes(KvCacheDType kept_as, int64_t dim) {
  return kept_as == KvCacheDType::int4 ? (dim + 1) / 2 : dim;
}
constexpr int64_t kv_head_bytes(KvCacheDType kept_as, DType model, int64_t dim) {
  if (kept_as == KvCacheDType::automatic) return dim * dtype_size(model);
  return kv_code_bytes(kept_as, dim) + kKvScales * dtype_size(DType::f32);
}

// What one layer stores per token. Layers may differ.
struct KvCacheSpec {
  KvCacheKind kind = KvCacheKind::full;
  DType dtype = DType::f32;  // the model's
  KvCacheDType kept_as = KvCacheDType::automatic;
  int64_t num_kv_heads = 0;
  int64_t k_dim = 0;  // values per head
  int64_t v_dim = 0;

  int64_t bytes_per_token() const {
    return num_kv_heads * (kv_head_bytes(kept_as, dtype, k_dim) + kv_head_bytes(kept_as, dtype, v_dim));
  }
  bool operator==(const KvCacheSpec&) const = default;
};

// One layer's blocks. Kernels read the strides of the block, token and head dimensions from the tensors, the
// last dimension is dense; K and V may be views of one allocation.
struct KvCacheView {
  Tensor k;  // [num_blocks, block_size, num_kv_heads, k_dim]; codes: u8 [..., kv_code_bytes(kept_as, k_dim)]
  Tensor v;  // [num_blocks, block_size, num_kv_heads, v_dim]; likewise
  KvCacheDType kept_as = KvCacheDType::automatic;
  // Where codes are kept: f32 [num_blocks, block_size, num_kv_heads, 2], of every head's codes scale and lowest value.
  Tensor k_scales = {}, v_scales = {};

  int64_t num_blocks() const { return k.dim(0); }
  int64_t block_size() const { return k.dim(1); }
  int64_t nbytes() const {
    return k.nbytes() + v.nbytes() + (k_scales.defined() ? k_scales.nbytes() + v_scales.nbytes() : 0);
  }
};

// Which rows of a flattened batch belong to which sequence, and where their K and V lie. Rows are ordered by
// sequence; any mix of query lengths is one call. All tensors are i32 on the context's device, but for
// slot_mapping (i64).
//
// Kernels read these tensors and a step's positions, and in batches of single rows the keys before each row's
// own, while preceding kernels still run (cuda_kernel.cuh, dependent launch). So what writes them ends before
// the next kernel is set up: it is a copy of the driver's, an earlier step, or a kernel that allows the next
// one only when it has written them.
struct AttentionMetadata {
  // [num_seqs + 1]: sequence s has the query rows [query_start_loc[s], query_start_loc[s + 1]).
  Tensor query_start_loc;
  // [num_seqs]: keys of sequence s, its query rows being the last of them.
  Tensor seq_lens;
  // [num_seqs, max_blocks]: only the first ceil(seq_lens[s] / block_size) entries are read.
  Tensor block_tables;
  // [>= num_tokens] i64: where each row's K and V are written; -1: a padding row, not written.
  Tensor slot_mapping;
  int64_t num_seqs = 0;
  int64_t num_tokens = 0;
  int64_t max_query_len = 0;  // bounds, which no sequence needs to reach: of query rows
  int64_t max_seq_len = 0;    // and of keys
};

}  // namespace ladder

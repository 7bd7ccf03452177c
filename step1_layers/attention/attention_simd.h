#pragma once
// The fast attention kernel of paged_attention.h and attention.h, one copy per instruction set.
//
// One unit of work is a block of query tokens of one sequence, with all query heads that share one key/value
// head: `tokens * group` rows that read the same keys. Keys are taken in tiles of kAttentionTile, at
// positions that are multiples of it. Per tile: gather the keys through the block table into a transposed
// float copy and the values into a float copy; scores = q k^T; online softmax; out = out * correction + p v.
// Both products run on blocks of registers with one lane per output, so every output is summed in the order
// of its keys, whatever the shape of the block: that is what makes the kernel batch invariant.
#include <cstdint>

#include "step1_layers/attention/kv_cache.h"
#include "step1_layers/core/cpu_features.h"
#include "step1_layers/core/dtype.h"

namespace ladder {

inline constexpr int64_t kAttentionTile = 64;
inline constexpr int64_t kAttentionMaxLanes = 16;

// All strides in elements, of codes in bytes. Key p lies at k + block_table[p / block_size] * k_block_stride +
// p % block_size * k_slot_stride; the same for values, and for the scales of codes.
template <class T>
struct AttentionWork {
  const T* q;  // the first token's first head of the group
  int64_t q_token_stride, q_head_stride;
  int64_t tokens, group;
  int64_t first_position;  // token t sees first_position + 1 + t * more_keys keys
  int64_t more_keys;       // 1, or without a mask 0
  const T *k, *v;          // this key/value head in block 0; codes: nullptr
  int64_t k_block_stride, k_slot_stride, v_block_stride, v_slot_stride;
  KvCacheDType kept_as;  // codes:
  const uint8_t *k_codes, *v_codes;
  const float *k_scales, *v_scales;
  int64_t scales_block_stride, scales_slot_stride;
  const int32_t* block_table;
  int64_t block_size;
  int64_t k_dim, v_dim;
  float scale;
  T* out;
  int64_t out_token_stride, out_head_stride;
  float* lse;  // nullptr: not wanted
  int64_t lse_token_stride, lse_head_stride;
  float* scratch;  // attention_scratch_floats() of them, 64-byte aligned
};

constexpr int64_t attention_padded(int64_t dim) {
  return (dim + kAttentionMaxLanes - 1) / kAttentionMaxLanes * kAttentionMaxLanes;
}

// q, scores, out, three numbers per row; the tile of keys and of values; a row of zeros; of codes the keys before they are
// transposed.
constexpr int64_t attention_scratch_floats(int64_t rows, int64_t k_dim, int64_t v_dim, bool codes) {
  const int64_t k = attention_padded(k_dim), v = attention_padded(v_dim);
  return rows * (k + kAttentionTile + v) + 3 * attention_padded(rows) + kAttentionTile * (k + v) + k + v +
         (codes ? kAttentionTile * k : 0);
}

LADDER_DECLARE_FOR_EACH_ISA(template <class T>
                            struct AttentionKernels { static void attend(const AttentionWork<T>& work); };)

}  // namespace ladder

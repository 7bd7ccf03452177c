#include "step1_layers/attention/attention_simd.h"

#include "step1_layers/attention/transpose.h"
#include "step1_layers/core/simd.h"

namespace ladder::LADDER_ISA {

namespace {

constexpr float kMinusInfinity = -__builtin_inff();

inline int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// The register block of the two products: kRows rows by kColumns registers, sized so that the accumulators,
// one row of b and one value of a fill the register file without spilling (32 registers, or 16).
#if defined(__AVX512F__)
constexpr int kRows = 6, kColumns = 4;
#else
constexpr int kRows = 6, kColumns = 2;
#endif

// >>> task 1.7.simd: the two products and the online softmax of one tile of keys
// c [R, W registers] = (factor ? c * factor : 0) + a [R, depth] b [depth, W registers], each element summed
// in the order of depth.
template <int R, int W>
void multiply_block(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t depth,
                    const float* factor, float* c, int64_t c_stride) {
  Vec sums[R][W];
  for (int r = 0; r < R; ++r)
    for (int w = 0; w < W; ++w)
      sums[r][w] = factor ? load(c + r * c_stride + w * kLanes) * broadcast(factor[r]) : zero();
  for (int64_t i = 0; i < depth; ++i) {
    Vec row[W];
    for (int w = 0; w < W; ++w) row[w] = load(b + i * b_stride + w * kLanes);
    for (int r = 0; r < R; ++r) {
      const Vec value = broadcast(a[r * a_stride + i]);
      for (int w = 0; w < W; ++w) sums[r][w] = fma(value, row[w], sums[r][w]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int w = 0; w < W; ++w) store(c + r * c_stride + w * kLanes, sums[r][w]);
}

// The last rows, fewer than kRows.
template <int R, int W>
void multiply_rest(int64_t rows, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                   int64_t depth, const float* factor, float* c, int64_t c_stride) {
  if constexpr (R > 0) {
    if (rows == R)
      multiply_block<R, W>(a, a_stride, b, b_stride, depth, factor, c, c_stride);
    else
      multiply_rest<R - 1, W>(rows, a, a_stride, b, b_stride, depth, factor, c, c_stride);
  }
}

template <int W>
void multiply_columns(int64_t rows, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                      int64_t depth, const float* factor, float* c, int64_t c_stride) {
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows)
    multiply_block<kRows, W>(a + r * a_stride, a_stride, b, b_stride, depth, factor ? factor + r : nullptr,
                             c + r * c_stride, c_stride);
  multiply_rest<kRows - 1, W>(rows - r, a + r * a_stride, a_stride, b, b_stride, depth,
                              factor ? factor + r : nullptr, c + r * c_stride, c_stride);
}

// c [rows, columns], columns a multiple of kLanes.
void multiply(int64_t rows, int64_t columns, const float* a, int64_t a_stride, const float* b,
              int64_t b_stride, int64_t depth, const float* factor, float* c, int64_t c_stride) {
  int64_t column = 0;
  for (; column + kColumns * kLanes <= columns; column += kColumns * kLanes)
    multiply_columns<kColumns>(rows, a, a_stride, b + column, b_stride, depth, factor, c + column, c_stride);
  for (; column < columns; column += kLanes)
    multiply_columns<1>(rows, a, a_stride, b + column, b_stride, depth, factor, c + column, c_stride);
}

inline float exp_of(float x) {
  float values[kLanes];
  store(values, exp(broadcast(x)));
  return values[0];
}

// Turns one row's scores of a tile into weights relative to the largest score so far, of which the first
// `valid` count. Returns the factor that brings earlier sums to the new largest score; it is exactly 1 where
// the tile brought no larger one.
float softmax_tile(float* scores, int64_t valid, float& largest, float& sum) {
  for (int64_t j = valid; j < kAttentionTile; ++j) scores[j] = kMinusInfinity;
  Vec tile_largest = load(scores);
  for (int64_t j = kLanes; j < kAttentionTile; j += kLanes)
    tile_largest = max(load(scores + j), tile_largest);
  const float tile_max = reduce_max(tile_largest);
  const float updated = tile_max > largest ? tile_max : largest;
  const float factor = updated == largest ? 1.0f : exp_of(largest - updated);
  Vec total = zero();
  for (int64_t j = 0; j < kAttentionTile; j += kLanes) {
    const Vec weight = exp(load(scores + j) - broadcast(updated));
    store(scores + j, weight);
    total = total + weight;
  }
  sum = sum * factor + reduce_add(total);
  largest = updated;
  return factor;
}
// <<< task 1.7.simd

// One position's codes and scales, of its keys and values.
struct CodesOfKey {
  const uint8_t *k, *v;
  const float *k_scales, *v_scales;
};

// Where positions [first, first + count) lie.
template <class T>
void locate(const AttentionWork<T>& work, int64_t first, int64_t count, const T** keys, const T** values) {
  int64_t entry = first / work.block_size, slot = first % work.block_size;
  for (int64_t j = 0; j < count; ++entry, slot = 0) {
    const int64_t block = work.block_table[entry];
    const T* k = work.k + block * work.k_block_stride;
    const T* v = work.v + block * work.v_block_stride;
    for (; slot < work.block_size && j < count; ++slot, ++j) {
      keys[j] = k + slot * work.k_slot_stride;
      values[j] = v + slot * work.v_slot_stride;
    }
  }
}

template <class T>
void prefetch(const T* row, int64_t count) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(row + i);
}

template <class T>
void copy_scaled(const T* x, int64_t count, float scale, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(out + i, load(x + i) * broadcast(scale));
  if (i < count) store_partial(out + i, load_partial(x + i, count - i) * broadcast(scale), count - i);
}

// The values of one tile as float rows of `padded` columns, zero past v_dim and past the last key.
template <class T>
void copy_values(const T* const* rows, int64_t count, int64_t v_dim, int64_t padded, float* out) {
  for (int64_t key = 0; key < count; ++key, out += padded) {
    int64_t i = 0;
    for (; i + kLanes <= v_dim; i += kLanes) store(out + i, load(rows[key] + i));
    if (i < v_dim) {
      store(out + i, load_partial(rows[key] + i, v_dim - i));
      i += kLanes;
    }
    for (; i < padded; i += kLanes) store(out + i, zero());
  }
}

template <class T>
void write_row(const float* values, float sum, int64_t count, T* out) {
  const Vec inverse = broadcast(1.0f / sum);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(out + i, load(values + i) * inverse);
  if (i < count) store_partial(out + i, load(values + i) * inverse, count - i);
}

// A head's numbers of its codes (kv_codes.h), zeros from dim to `padded`. Plain loops: compilers widen them.
void numbers_of_codes(KvCacheDType kept_as, const uint8_t* codes, const float* scales, int64_t dim,
                      int64_t padded, float* out) {
  const float scale = scales[0], low = scales[1];
  if (kept_as == KvCacheDType::int8) {
    for (int64_t i = 0; i < dim; ++i) out[i] = static_cast<float>(static_cast<int8_t>(codes[i])) * scale;
  } else if (kept_as == KvCacheDType::int4) {
    for (int64_t i = 0; i < dim / 2; ++i) {
      out[2 * i] = low + static_cast<float>(codes[i] & 15) * scale;
      out[2 * i + 1] = low + static_cast<float>(codes[i] >> 4) * scale;
    }
    if (dim % 2 != 0) out[dim - 1] = low + static_cast<float>(codes[dim / 2] & 15) * scale;
  } else {
    // E4M3's exponent and mantissa where a float has its own, whose bias is larger by 120. A cache has no NaN.
    for (int64_t i = 0; i < dim; ++i) {
      const uint32_t code = codes[i], bits = (code & 0x80) << 24 | (code & 0x7f) << 20;
      out[i] = __builtin_bit_cast(float, bits) * 0x1p120f * scale;
    }
  }
  for (int64_t i = dim; i < padded; ++i) out[i] = 0;
}

// Where the codes of positions [first, first + count) lie.
template <class T>
void locate_codes(const AttentionWork<T>& work, int64_t first, int64_t count, CodesOfKey* keys) {
  int64_t entry = first / work.block_size, slot = first % work.block_size;
  for (int64_t j = 0; j < count; ++entry, slot = 0) {
    const int64_t block = work.block_table[entry];
    for (; slot < work.block_size && j < count; ++slot, ++j) {
      const int64_t scales = block * work.scales_block_stride + slot * work.scales_slot_stride;
      keys[j] = {work.k_codes + block * work.k_block_stride + slot * work.k_slot_stride,
                 work.v_codes + block * work.v_block_stride + slot * work.v_slot_stride,
                 work.k_scales + scales, work.v_scales + scales};
    }
  }
}

// A tile of keys [k_dim, tile], transposed, and of values [tile, v_padded] as floats; keys past the last one are zeros: what
// lies in their slots is not part of the sequence.
template <class T>
void take_tile(const AttentionWork<T>& work, int64_t tile, int64_t num_keys, const float* zeros, float* keys,
               float* values) {
  const int64_t count = smaller(num_keys - tile, kAttentionTile);
  const T *key_rows[kAttentionTile], *value_rows[kAttentionTile];
  locate(work, tile, count, key_rows, value_rows);
  for (int64_t j = count; j < kAttentionTile; ++j) key_rows[j] = reinterpret_cast<const T*>(zeros);
  transpose_rows(key_rows, kAttentionTile, work.k_dim, keys);
  copy_values(value_rows, count, work.v_dim, attention_padded(work.v_dim), values);
  if (tile + kAttentionTile >= num_keys) return;
  // The next tile is prefetched while this one is computed: its rows lie apart, where the processor's own
  // prefetcher does not look.
  const int64_t next = tile + kAttentionTile, next_count = smaller(num_keys - next, kAttentionTile);
  locate(work, next, next_count, key_rows, value_rows);
  for (int64_t j = 0; j < next_count; ++j) {
    prefetch(key_rows[j], work.k_dim);
    prefetch(value_rows[j], work.v_dim);
  }
}

// The same of codes; `key_rows` [tile, k_padded] is scratch.
template <class T>
void take_tile_of_codes(const AttentionWork<T>& work, int64_t tile, int64_t num_keys, const float* zeros,
                        float* keys, float* values, float* key_rows) {
  const int64_t count = smaller(num_keys - tile, kAttentionTile);
  const int64_t k_padded = attention_padded(work.k_dim), v_padded = attention_padded(work.v_dim);
  CodesOfKey codes[kAttentionTile];
  const float* rows[kAttentionTile];
  locate_codes(work, tile, count, codes);
  for (int64_t j = 0; j < count; ++j) {
    numbers_of_codes(work.kept_as, codes[j].k, codes[j].k_scales, work.k_dim, k_padded,
                     key_rows + j * k_padded);
    numbers_of_codes(work.kept_as, codes[j].v, codes[j].v_scales, work.v_dim, v_padded,
                     values + j * v_padded);
    rows[j] = key_rows + j * k_padded;
  }
  for (int64_t j = count; j < kAttentionTile; ++j) rows[j] = zeros;
  transpose_rows(rows, kAttentionTile, work.k_dim, keys);
}

}  // namespace

template <class T>
void AttentionKernels<T>::attend(const AttentionWork<T>& work) {
  const int64_t rows = work.tokens * work.group;
  const int64_t k_padded = attention_padded(work.k_dim), v_padded = attention_padded(work.v_dim);
  float* q = work.scratch;
  float* scores = q + rows * k_padded;
  float* out = scores + rows * kAttentionTile;
  float* keys = out + rows * v_padded;               // [k_dim, tile]
  float* values = keys + kAttentionTile * k_padded;  // [tile, v_padded]
  float* largest = values + kAttentionTile * v_padded;
  float* sums = largest + attention_padded(rows);
  float* factors = sums + attention_padded(rows);
  float* zeros = factors + attention_padded(rows);
  float* key_rows = zeros + k_padded + v_padded;  // of codes alone: [tile, k_padded]

  for (int64_t row = 0; row < rows; ++row) {
    const T* x = work.q + row / work.group * work.q_token_stride + row % work.group * work.q_head_stride;
    copy_scaled(x, work.k_dim, work.scale, q + row * k_padded);
    for (int64_t i = 0; i < v_padded; ++i) out[row * v_padded + i] = 0.0f;
    largest[row] = kMinusInfinity;
    sums[row] = 0.0f;
  }
  __builtin_memset(zeros, 0, static_cast<size_t>(k_padded + v_padded) * sizeof(float));

  const int64_t num_keys = work.first_position + 1 + (work.tokens - 1) * work.more_keys;
  for (int64_t tile = 0; tile < num_keys; tile += kAttentionTile) {
    const int64_t count = smaller(num_keys - tile, kAttentionTile);
    if (work.kept_as == KvCacheDType::automatic)
      take_tile(work, tile, num_keys, zeros, keys, values);
    else
      take_tile_of_codes(work, tile, num_keys, zeros, keys, values, key_rows);

    // Rows before `first` see none of these keys and are left alone.
    const int64_t first_token = tile > work.first_position ? tile - work.first_position : 0;
    const int64_t first = first_token * work.group;
    multiply(rows - first, kAttentionTile, q + first * k_padded, k_padded, keys, kAttentionTile, work.k_dim,
             nullptr, scores + first * kAttentionTile, kAttentionTile);
    for (int64_t row = first; row < rows; ++row) {
      const int64_t visible = work.first_position + 1 + row / work.group * work.more_keys - tile;
      factors[row] = softmax_tile(scores + row * kAttentionTile, smaller(visible, kAttentionTile),
                                  largest[row], sums[row]);
    }
    multiply(rows - first, v_padded, scores + first * kAttentionTile, kAttentionTile, values, v_padded, count,
             factors + first, out + first * v_padded, v_padded);
  }

  for (int64_t row = 0; row < rows; ++row) {
    const int64_t token = row / work.group, head = row % work.group;
    write_row(out + row * v_padded, sums[row], work.v_dim,
              work.out + token * work.out_token_stride + head * work.out_head_stride);
    if (work.lse)
      work.lse[token * work.lse_token_stride + head * work.lse_head_stride] =
          largest[row] + __builtin_logf(sums[row]);
  }
}

template struct AttentionKernels<float>;
template struct AttentionKernels<bf16>;
template struct AttentionKernels<f16>;

}  // namespace ladder::LADDER_ISA

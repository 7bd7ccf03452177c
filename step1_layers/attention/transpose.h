#pragma once
// Gathers rows that lie anywhere into a transposed float matrix, kLanes by kLanes values at a time in
// registers. Only x_simd.cpp files include this.
#include "step1_layers/core/simd.h"

namespace ladder::LADDER_ISA {

// out[i] lane j = in[j] lane i.
#if defined(__AVX512F__)
inline void transpose(const Vec* in, Vec* out) {
  __m512 pairs[16], quads[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(in[i].v, in[i + 1].v);
    pairs[i + 1] = _mm512_unpackhi_ps(in[i].v, in[i + 1].v);
  }
  // Lane group g of quads[4 i + c] holds column 4 g + c of rows 4 i to 4 i + 3.
  for (int i = 0; i < 16; i += 4)
    for (int c = 0; c < 2; ++c) {
      const __m512d low = _mm512_castps_pd(pairs[i + c]), high = _mm512_castps_pd(pairs[i + 2 + c]);
      quads[i + 2 * c] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
      quads[i + 2 * c + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
    }
  for (int c = 0; c < 4; ++c) {
    const __m512 even_top = _mm512_shuffle_f32x4(quads[c], quads[4 + c], 0x88);
    const __m512 odd_top = _mm512_shuffle_f32x4(quads[c], quads[4 + c], 0xdd);
    const __m512 even_bottom = _mm512_shuffle_f32x4(quads[8 + c], quads[12 + c], 0x88);
    const __m512 odd_bottom = _mm512_shuffle_f32x4(quads[8 + c], quads[12 + c], 0xdd);
    out[c].v = _mm512_shuffle_f32x4(even_top, even_bottom, 0x88);
    out[4 + c].v = _mm512_shuffle_f32x4(odd_top, odd_bottom, 0x88);
    out[8 + c].v = _mm512_shuffle_f32x4(even_top, even_bottom, 0xdd);
    out[12 + c].v = _mm512_shuffle_f32x4(odd_top, odd_bottom, 0xdd);
  }
}
#elif defined(__AVX2__)
inline void transpose(const Vec* in, Vec* out) {
  __m256 pairs[8], quads[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(in[i].v, in[i + 1].v);
    pairs[i + 1] = _mm256_unpackhi_ps(in[i].v, in[i + 1].v);
  }
  for (int i = 0; i < 8; i += 4)
    for (int c = 0; c < 2; ++c) {
      const __m256d low = _mm256_castps_pd(pairs[i + c]), high = _mm256_castps_pd(pairs[i + 2 + c]);
      quads[i + 2 * c] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, high));
      quads[i + 2 * c + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, high));
    }
  for (int c = 0; c < 4; ++c) {
    out[c].v = _mm256_permute2f128_ps(quads[c], quads[4 + c], 0x20);
    out[4 + c].v = _mm256_permute2f128_ps(quads[c], quads[4 + c], 0x31);
  }
}
#else
inline void transpose(const Vec* in, Vec* out) {
  for (int i = 0; i < kLanes; ++i)
    for (int j = 0; j < kLanes; ++j) out[i].v[j] = in[j].v[i];
}
#endif

// One block of transpose_rows: kLanes rows, `width` columns from `column` on.
template <class T>
inline void transpose_block(const T* const* rows, int64_t stride, int64_t column, int64_t width, float* out) {
  Vec in[kLanes], turned[kLanes];
  for (int i = 0; i < kLanes; ++i)
    in[i] = width == kLanes ? load(rows[i] + column) : load_partial(rows[i] + column, width);
  transpose(in, turned);
  for (int64_t i = 0; i < width; ++i) store(out + (column + i) * stride, turned[i]);
}

#if defined(__AVX2__)
// A block of 2 kLanes columns of bf16: neighbours are moved as one 32-bit value and parted at the end, which
// halves the shuffles.
inline void transpose_pairs(const bf16* const* rows, int64_t stride, int64_t column, float* out) {
  Vec in[kLanes], turned[kLanes];
  for (int i = 0; i < kLanes; ++i) in[i] = load(reinterpret_cast<const float*>(rows[i] + column));
  transpose(in, turned);
  for (int64_t i = 0; i < kLanes; ++i) {
    float* even = out + (column + 2 * i) * stride;
#if defined(__AVX512F__)
    const __m512i pairs = _mm512_castps_si512(turned[i].v);
    store(even, {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))});
    store(even + stride, {_mm512_castsi512_ps(_mm512_and_epi32(pairs, _mm512_set1_epi32(~0xffff)))});
#else
    const __m256i pairs = _mm256_castps_si256(turned[i].v);
    store(even, {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16))});
    store(even + stride, {_mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(~0xffff)))});
#endif
  }
}
#endif

// out [columns, count] = rows [count, columns] transposed; count a multiple of kLanes.
template <class T>
inline void transpose_rows(const T* const* rows, int64_t count, int64_t columns, float* out) {
  for (int64_t row = 0; row < count; row += kLanes) {
    int64_t column = 0;
#if defined(__AVX2__)
    if constexpr (__is_same(T, bf16))
      for (; column + 2 * kLanes <= columns; column += 2 * kLanes)
        transpose_pairs(rows + row, count, column, out + row);
#endif
    for (; column + kLanes <= columns; column += kLanes)
      transpose_block(rows + row, count, column, kLanes, out + row);
    if (column < columns) transpose_block(rows + row, count, column, columns - column, out + row);
  }
}

}  // namespace ladder::LADDER_ISA

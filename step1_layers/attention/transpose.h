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

// out [columns, count] = rows [count, columns] transposed; count a multiple of kLanes.
template <class T>
inline void transpose_rows(const T* const* rows, int64_t count, int64_t columns, float* out) {
  Vec in[kLanes], turned[kLanes];
  for (int64_t column = 0; column < columns; column += kLanes) {
    const int64_t width = columns - column < kLanes ? columns - column : kLanes;
    for (int64_t row = 0; row < count; row += kLanes) {
      if (width == kLanes) {
        for (int i = 0; i < kLanes; ++i) in[i] = load(rows[row + i] + column);
        transpose(in, turned);
        for (int i = 0; i < kLanes; ++i) store(out + (column + i) * count + row, turned[i]);
      } else {
        for (int i = 0; i < kLanes; ++i) in[i] = load_partial(rows[row + i] + column, width);
        transpose(in, turned);
        for (int64_t i = 0; i < width; ++i) store(out + (column + i) * count + row, turned[i]);
      }
    }
  }
}

}  // namespace ladder::LADDER_ISA

#include "step8_advanced/quantization/kernels/int8_simd.h"

#include <cstring>

#include "step1_layers/core/simd.h"

namespace ladder::LADDER_ISA {

namespace {

constexpr int64_t kChunk = 4096;  // of k: a tile's rows of x stay in the L1 cache

// A register of sums; `step` codes of a row of the weight, as many of x, and sums += their products.
#if defined(__AVX512F__)
constexpr int kTileRows = 6, kTileColumns = 4;
using Sums = __m512i;
inline Sums no_sums() {
  return _mm512_setzero_si512();
}
inline int32_t total(Sums sums) {
  return _mm512_reduce_add_epi32(sums);
}
struct Madd {
  static constexpr int64_t kStep = 32;
  using X = int16_t;
  using Codes = __m512i;
  static Codes load_codes(const int8_t* p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Sums add(Sums sums, const X* x, Codes codes) {
    return _mm512_add_epi32(sums, _mm512_madd_epi16(_mm512_loadu_si512(x), codes));
  }
};
struct Vnni {
  static constexpr int64_t kStep = 64;
  using X = uint8_t;
  using Codes = __m512i;
  static Codes load_codes(const int8_t* p) { return _mm512_loadu_si512(p); }
  // The instruction itself: what these files are compiled for does not have it.
  static Sums add(Sums sums, const X* x, Codes codes) {
    const __m512i row = _mm512_loadu_si512(x);
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(row), "v"(codes));
    return sums;
  }
};
#elif defined(__AVX2__)
constexpr int kTileRows = 2, kTileColumns = 4;
using Sums = __m256i;
inline Sums no_sums() {
  return _mm256_setzero_si256();
}
inline int32_t total(Sums sums) {
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
struct Madd {
  static constexpr int64_t kStep = 16;
  using X = int16_t;
  using Codes = __m256i;
  static Codes load_codes(const int8_t* p) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Sums add(Sums sums, const X* x, Codes codes) {
    const __m256i row = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(row, codes));
  }
};
#else
constexpr int kTileRows = 2, kTileColumns = 2;
using Sums = int32_t;
inline Sums no_sums() {
  return 0;
}
inline int32_t total(Sums sums) {
  return sums;
}
struct Madd {
  static constexpr int64_t kStep = 16;
  using X = int16_t;
  struct Codes {
    int16_t v[kStep];
  };
  static Codes load_codes(const int8_t* p) {
    Codes codes;
    for (int i = 0; i < kStep; ++i) codes.v[i] = p[i];
    return codes;
  }
  static Sums add(Sums sums, const X* x, const Codes& codes) {
    for (int i = 0; i < kStep; ++i) sums += x[i] * codes.v[i];
    return sums;
  }
};
#endif

// >>> task 8.4.int8: tiles of exact sums of 8-bit products
// panel.sums of kRows rows of x from row i on and kColumns of the weight from j on, += columns [begin, end).
template <class Dot, int kRows, int kColumns>
void tile(const Int8Panel& panel, int64_t i, int64_t j, int64_t begin, int64_t end) {
  constexpr int64_t kStep = Dot::kStep;
  const auto* x = static_cast<const typename Dot::X*>(panel.x) + i * panel.x_stride;
  const int8_t* codes = panel.codes + j * panel.codes_stride;
  Sums sums[kRows][kColumns];
  for (int a = 0; a < kRows; ++a)
    for (int c = 0; c < kColumns; ++c) sums[a][c] = no_sums();
  int64_t at = begin;
  for (; at + kStep <= end; at += kStep) {
    typename Dot::Codes weight[kColumns];
    for (int c = 0; c < kColumns; ++c) {
      weight[c] = Dot::load_codes(codes + c * panel.codes_stride + at);
      if (i == 0) __builtin_prefetch(codes + (c + kColumns) * panel.codes_stride + at);
    }
    for (int a = 0; a < kRows; ++a)
      for (int c = 0; c < kColumns; ++c)
        sums[a][c] = Dot::add(sums[a][c], x + a * panel.x_stride + at, weight[c]);
  }
  if (at < end) {  // x is padded with zeros
    for (int c = 0; c < kColumns; ++c) {
      int8_t rest[kStep] = {};
      std::memcpy(rest, codes + c * panel.codes_stride + at, static_cast<size_t>(end - at));
      const typename Dot::Codes weight = Dot::load_codes(rest);
      for (int a = 0; a < kRows; ++a) sums[a][c] = Dot::add(sums[a][c], x + a * panel.x_stride + at, weight);
    }
  }
  for (int a = 0; a < kRows; ++a)
    for (int c = 0; c < kColumns; ++c) panel.sums[(i + a) * panel.n + j + c] += total(sums[a][c]);
}

template <class Dot, int kRows>
void tile_row(const Int8Panel& panel, int64_t i, int64_t begin, int64_t end) {
  int64_t j = 0;
  for (; j + kTileColumns <= panel.n; j += kTileColumns)
    tile<Dot, kRows, kTileColumns>(panel, i, j, begin, end);
  for (; j < panel.n; ++j) tile<Dot, kRows, 1>(panel, i, j, begin, end);
}

// The last rows, fewer than a tile has.
template <class Dot, int kRows>
void rest_rows(const Int8Panel& panel, int64_t i, int64_t begin, int64_t end) {
  if constexpr (kRows > 0) {
    if (panel.m - i == kRows)
      tile_row<Dot, kRows>(panel, i, begin, end);
    else
      rest_rows<Dot, kRows - 1>(panel, i, begin, end);
  }
}

template <class Dot>
void sums_of(const Int8Panel& panel) {
  std::memset(panel.sums, 0, static_cast<size_t>(panel.m * panel.n) * sizeof(int32_t));
  for (int64_t begin = 0; begin < panel.k; begin += kChunk) {
    const int64_t end = panel.k - begin < kChunk ? panel.k : begin + kChunk;
    int64_t i = 0;
    for (; i + kTileRows <= panel.m; i += kTileRows) tile_row<Dot, kTileRows>(panel, i, begin, end);
    rest_rows<Dot, kTileRows - 1>(panel, i, begin, end);
  }
}
// <<< task 8.4.int8

}  // namespace

void int8_madd_sums(const Int8Panel& panel) {
  sums_of<Madd>(panel);
}

#if defined(__AVX512F__)
void int8_vnni_sums(const Int8Panel& panel) {
  sums_of<Vnni>(panel);
}
#endif

}  // namespace ladder::LADDER_ISA

#include "step1_layers/linear/matmul_simd.h"

#include <cstring>

#include "step1_layers/core/simd.h"

namespace ladder::LADDER_ISA {

namespace {

// The largest tile whose accumulators, and the registers that feed them, fit the register file: 32 registers
// with AVX-512, 16 below.
#if defined(__AVX512F__)
constexpr int kTileRows = 6;
constexpr int kTileColumns = 4;
constexpr int64_t kDirectRows = 6;  // up to here widening in the tile costs less than widening beforehand
#elif defined(__AVX2__)
constexpr int kTileRows = 3;
constexpr int kTileColumns = 4;
constexpr int64_t kDirectRows = 6;
#else
constexpr int kTileRows = 2;
constexpr int kTileColumns = 2;
constexpr int64_t kDirectRows = 1;
#endif

// sums[j] += the sum of acc[j]'s lanes. Four registers are reduced together, with half the instructions of
// one after another; columns that are not there are zero, so that an element's additions are the same in a
// whole tile and in the last, narrower one.
#if defined(__AVX512F__)
template <int kColumns>
void add_lanes(const Vec* acc, float* sums) {
  static_assert(kColumns == 1 || kColumns == 4);
  const __m512 none = _mm512_setzero_ps();
  const __m512 a = acc[0].v, b = kColumns == 4 ? acc[1 % kColumns].v : none;
  const __m512 c = kColumns == 4 ? acc[2 % kColumns].v : none, d = kColumns == 4 ? acc[3 % kColumns].v : none;
  const __m512d ab = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
  const __m512d cd = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
  const __m512 sum = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                                   _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  if (kColumns == 4)
    _mm_storeu_ps(sums, _mm_add_ps(_mm_loadu_ps(sums), four));
  else
    sums[0] += _mm_cvtss_f32(four);
}
#elif defined(__AVX2__)
template <int kColumns>
void add_lanes(const Vec* acc, float* sums) {
  static_assert(kColumns == 1 || kColumns == 4);
  const __m256 none = _mm256_setzero_ps();
  const __m256 a = acc[0].v, b = kColumns == 4 ? acc[1 % kColumns].v : none;
  const __m256 c = kColumns == 4 ? acc[2 % kColumns].v : none, d = kColumns == 4 ? acc[3 % kColumns].v : none;
  const __m256 sum = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
  if (kColumns == 4)
    _mm_storeu_ps(sums, _mm_add_ps(_mm_loadu_ps(sums), four));
  else
    sums[0] += _mm_cvtss_f32(four);
}
#else
template <int kColumns>
void add_lanes(const Vec* acc, float* sums) {
  for (int j = 0; j < kColumns; ++j) sums[j] += reduce_add(acc[j]);
}
#endif

// >>> task 1.4.simd: tiles of dot products, and the order in which they go through the caches
// sums[i][j] += x row i times weight row j, over one chunk.
template <class W, int kRows, int kColumns, bool kPrefetch>
void tile(const float* x, int64_t x_stride, const W* weight, int64_t weight_stride, int64_t k, float* sums,
          int64_t sums_stride) {
  Vec acc[kRows][kColumns];
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kColumns; ++j) acc[i][j] = zero();
  int64_t at = 0;
  for (; at + kLanes <= k; at += kLanes) {
    Vec w[kColumns];
    for (int j = 0; j < kColumns; ++j) {
      w[j] = load(weight + j * weight_stride + at);
      if (kPrefetch) __builtin_prefetch(weight + (j + kColumns) * weight_stride + at);
    }
    for (int i = 0; i < kRows; ++i) {
      const Vec row = load(x + i * x_stride + at);
      for (int j = 0; j < kColumns; ++j) acc[i][j] = fma(row, w[j], acc[i][j]);
    }
  }
  if (at < k) {
    Vec w[kColumns];
    for (int j = 0; j < kColumns; ++j) w[j] = load_partial(weight + j * weight_stride + at, k - at);
    for (int i = 0; i < kRows; ++i) {
      const Vec row = load(x + i * x_stride + at);  // padded with zeros
      for (int j = 0; j < kColumns; ++j) acc[i][j] = fma(row, w[j], acc[i][j]);
    }
  }
  for (int i = 0; i < kRows; ++i) add_lanes<kColumns>(acc[i], sums + i * sums_stride);
}

template <class W, int kRows, bool kPrefetch>
void tile_row(const float* x, int64_t x_stride, const W* weight, int64_t weight_stride, int64_t n, int64_t k,
              float* sums, int64_t sums_stride) {
  int64_t j = 0;
  for (; j + kTileColumns <= n; j += kTileColumns)
    tile<W, kRows, kTileColumns, kPrefetch>(x, x_stride, weight + j * weight_stride, weight_stride, k,
                                            sums + j, sums_stride);
  for (; j < n; ++j)
    tile<W, kRows, 1, kPrefetch>(x, x_stride, weight + j * weight_stride, weight_stride, k, sums + j,
                                 sums_stride);
}

// The last rows, fewer than a tile has.
template <class W, int kRows, bool kPrefetch>
void rest_rows(int64_t rows, const float* x, int64_t x_stride, const W* weight, int64_t weight_stride,
               int64_t n, int64_t k, float* sums, int64_t sums_stride) {
  if constexpr (kRows > 0) {
    if (rows == kRows)
      tile_row<W, kRows, kPrefetch>(x, x_stride, weight, weight_stride, n, k, sums, sums_stride);
    else
      rest_rows<W, kRows - 1, kPrefetch>(rows, x, x_stride, weight, weight_stride, n, k, sums, sums_stride);
  }
}

template <bool kPrefetch, class W>
void chunk_sums(const float* x, int64_t x_stride, int64_t m, const W* weight, int64_t weight_stride,
                int64_t n, int64_t k, float* sums, int64_t sums_stride) {
  int64_t i = 0;
  for (; i + kTileRows <= m; i += kTileRows)
    tile_row<W, kTileRows, kPrefetch>(x + i * x_stride, x_stride, weight, weight_stride, n, k,
                                      sums + i * sums_stride, sums_stride);
  rest_rows<W, kTileRows - 1, kPrefetch>(m - i, x + i * x_stride, x_stride, weight, weight_stride, n, k,
                                         sums + i * sums_stride, sums_stride);
}

// Few rows of x: every weight is read from memory and used at once, so a few rows of it are read from end to
// end, which the prefetchers like, before the next few.
template <class T>
void sums_direct(const MatmulPanel& panel) {
  const T* weight = static_cast<const T*>(panel.weight);
  for (int64_t j = 0; j < panel.n; j += kTileColumns) {
    const int64_t n = panel.n - j < kTileColumns ? panel.n - j : kTileColumns;
    const float* x = static_cast<const float*>(panel.x);
    for (int64_t at = 0; at < panel.k; at += kMatmulChunk) {
      const int64_t k = panel.k - at < kMatmulChunk ? panel.k - at : kMatmulChunk;
      chunk_sums<true>(x, matmul_padded(k), panel.m, weight + j * panel.weight_stride + at,
                       panel.weight_stride, n, k, panel.sums + j, panel.n);
      x += panel.m * matmul_padded(k);
    }
  }
}

// Many rows of x: a chunk of the panel's weights is widened to float once (which is exact, so an element has
// the same bits as in sums_direct), stays in the L2 cache, and is used by all rows.
template <class T>
void sums_blocked(const MatmulPanel& panel) {
  const T* weight = static_cast<const T*>(panel.weight);
  const float* x = static_cast<const float*>(panel.x);
  for (int64_t at = 0; at < panel.k; at += kMatmulChunk) {
    const int64_t k = panel.k - at < kMatmulChunk ? panel.k - at : kMatmulChunk;
    if constexpr (sizeof(T) == sizeof(float)) {
      chunk_sums<false>(x, matmul_padded(k), panel.m, weight + at, panel.weight_stride, panel.n, k,
                        panel.sums, panel.n);
    } else {
      for (int64_t j = 0; j < panel.n; ++j) {
        const T* from = weight + j * panel.weight_stride + at;
        float* to = panel.converted + j * kMatmulChunk;
        int64_t i = 0;
        for (; i + kLanes <= k; i += kLanes) store(to + i, load(from + i));
        if (i < k) store(to + i, load_partial(from + i, k - i));
      }
      chunk_sums<false>(x, matmul_padded(k), panel.m, panel.converted, kMatmulChunk, panel.n, k, panel.sums,
                        panel.n);
    }
    x += panel.m * matmul_padded(k);
  }
}

// <<< task 1.4.simd

template <class T>
void sums_of(const MatmulPanel& panel) {
  std::memset(panel.sums, 0, static_cast<size_t>(panel.m * panel.n) * sizeof(float));
  panel.m <= kDirectRows ? sums_direct<T>(panel) : sums_blocked<T>(panel);
}

template <class T>
void pack(const T* x, int64_t x_stride, const MatmulPanel& panel, int64_t row_begin, int64_t row_end) {
  float* packed = static_cast<float*>(const_cast<void*>(panel.x));
  for (int64_t at = 0; at < panel.k; at += kMatmulChunk) {
    const int64_t k = panel.k - at < kMatmulChunk ? panel.k - at : kMatmulChunk;
    const int64_t stride = matmul_padded(k);
    for (int64_t row = row_begin; row < row_end; ++row) {
      const T* from = x + row * x_stride + at;
      float* to = packed + row * stride;
      int64_t i = 0;
      for (; i + kLanes <= k; i += kLanes) store(to + i, load(from + i));
      for (; i < stride; i += kLanes) store(to + i, i < k ? load_partial(from + i, k - i) : zero());
    }
    packed += panel.m * stride;
  }
}

template <class T, class Out>
void store_as(const MatmulPanel& panel) {
  const T* bias = static_cast<const T*>(panel.bias);
  for (int64_t row = 0; row < panel.m; ++row) {
    const float* sums = panel.sums + row * panel.n;
    Out* out = static_cast<Out*>(panel.out) + row * panel.out_stride;
    int64_t j = 0;
    for (; j + kLanes <= panel.n; j += kLanes) {
      Vec sum = load(sums + j);
      if (bias != nullptr) sum = sum + load(bias + j);
      store(out + j, sum);
    }
    if (j < panel.n) {
      Vec sum = load_partial(sums + j, panel.n - j);
      if (bias != nullptr) sum = sum + load_partial(bias + j, panel.n - j);
      Out values[kLanes];
      store(values, sum);
      std::memcpy(out + j, values, static_cast<size_t>(panel.n - j) * sizeof(Out));
    }
  }
}

}  // namespace

void matmul_pack_x(const void* x, int64_t x_stride, const MatmulPanel& panel, int64_t row_begin,
                   int64_t row_end) {
  if (panel.dtype == DType::f32)
    pack(static_cast<const float*>(x), x_stride, panel, row_begin, row_end);
  else if (panel.dtype == DType::bf16)
    pack(static_cast<const bf16*>(x), x_stride, panel, row_begin, row_end);
  else
    pack(static_cast<const f16*>(x), x_stride, panel, row_begin, row_end);
}

void matmul_sums(const MatmulPanel& panel) {
  if (panel.dtype == DType::f32)
    sums_of<float>(panel);
  else if (panel.dtype == DType::bf16)
    sums_of<bf16>(panel);
  else
    sums_of<f16>(panel);
}

void matmul_store(const MatmulPanel& panel) {
  if (panel.dtype == DType::f32)
    store_as<float, float>(panel);
  else if (panel.dtype == DType::bf16)
    panel.out_f32 ? store_as<bf16, float>(panel) : store_as<bf16, bf16>(panel);
  else
    panel.out_f32 ? store_as<f16, float>(panel) : store_as<f16, f16>(panel);
}

}  // namespace ladder::LADDER_ISA

#include "step8_advanced/quantization/algorithms/product_f64_simd.h"

#include <cstring>

namespace ladder::LADDER_ISA {
namespace {

// The compiler's own vectors: simd.h has floats only. A tile's accumulators fit the register file: 32 registers with
// AVX-512, 16 below.
#if defined(__AVX512F__)
constexpr int kDoubles = 8, kTileRows = 8;
#elif defined(__AVX2__)
constexpr int kDoubles = 4, kTileRows = 3;
#else
constexpr int kDoubles = 2, kTileRows = 1;
#endif
constexpr int kVectors = static_cast<int>(kPanelColumns) / kDoubles;
using Vector = double __attribute__((vector_size(sizeof(double) * kDoubles)));

Vector load(const double* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

template <int kRows>
void tile(const double* a, int64_t a_stride, const double* b, int64_t k, double* c, int64_t c_stride) {
  Vector sum[kRows][kVectors] = {};
  for (int64_t at = 0; at < k; ++at) {
    Vector row[kVectors];
    for (int j = 0; j < kVectors; ++j) row[j] = load(b + at * kPanelColumns + j * kDoubles);
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kVectors; ++j) sum[i][j] += row[j] * a[i * a_stride + at];
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      const Vector total = load(c + i * c_stride + j * kDoubles) + sum[i][j];
      std::memcpy(c + i * c_stride + j * kDoubles, &total, sizeof(total));
    }
  }
}

}  // namespace

void add_product(const double* a, int64_t a_stride, const double* b, int64_t m, int64_t k, double* c,
                 int64_t c_stride) {
  int64_t row = 0;
  for (; row + kTileRows <= m; row += kTileRows)
    tile<kTileRows>(a + row * a_stride, a_stride, b, k, c + row * c_stride, c_stride);
  for (; row < m; ++row) tile<1>(a + row * a_stride, a_stride, b, k, c + row * c_stride, c_stride);
}

}  // namespace ladder::LADDER_ISA

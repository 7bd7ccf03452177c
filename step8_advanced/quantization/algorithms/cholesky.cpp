#include "step8_advanced/quantization/algorithms/cholesky.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "step1_layers/core/cpu_features.h"
#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step8_advanced/quantization/algorithms/product_f64_simd.h"

namespace ladder {
namespace {

constexpr int64_t kBlock = 64;   // columns of a block
constexpr int64_t kChunk = 256;  // of a product's inner dimension: 16 columns of it stay in the L1 cache
static_assert(kBlock % kPanelColumns == 0);

auto add_product_here() {
#if defined(__x86_64__)
  if (cpu_isa() >= CpuIsa::avx512) return avx512::add_product;
  if (cpu_isa() >= CpuIsa::avx2) return avx2::add_product;
#endif
  return portable::add_product;
}

struct Square {
  double* data;
  int64_t n;
  double* row(int64_t i) const { return data + i * n; }
};

Square square(const Tensor& a, const char* what) {
  expect_dtype(a, DType::f64, what);
  expect_shape(a, {-1, a.dim(0)}, what);
  LADDER_CHECK(a.is_contiguous() && a.device().is_cpu(), "{}: the matrix must be contiguous and on the CPU",
               what);
  return {a.data<double>(), a.dim(0)};
}

// a[begin.., begin..end) -= L[begin.., 0..begin) * L[begin..end, 0..begin)^T: what the columns before have to say.
void subtract_columns_before(const Square& a, int64_t begin, int64_t end, std::vector<double>& panels) {
  // The right factor as add_product wants it: [panel][begin][16], columns that are not there are 0.
  const int64_t panel_count = (end - begin + kPanelColumns - 1) / kPanelColumns;
  panels.assign(static_cast<size_t>(panel_count * begin * kPanelColumns), 0.0);
  for (int64_t column = begin; column < end; ++column) {
    const int64_t panel = (column - begin) / kPanelColumns, lane = (column - begin) % kPanelColumns;
    for (int64_t p = 0; p < begin; ++p)
      panels[static_cast<size_t>((panel * begin + p) * kPanelColumns + lane)] = a.row(column)[p];
  }
  const auto add_product = add_product_here();
  parallel_for(a.n - begin, 16, [&](int64_t first, int64_t last) {
    constexpr int64_t kRows = 32;
    double sums[kRows * kBlock];
    for (int64_t row = begin + first; row < begin + last; row += kRows) {
      const int64_t rows = std::min(kRows, begin + last - row);
      std::fill(sums, sums + rows * kBlock, 0.0);
      for (int64_t p = 0; p < begin; p += kChunk)
        for (int64_t panel = 0; panel < panel_count; ++panel)
          add_product(a.row(row) + p, a.n, panels.data() + (panel * begin + p) * kPanelColumns, rows,
                      std::min(kChunk, begin - p), sums + panel * kPanelColumns, kBlock);
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = begin; j < end; ++j) a.row(row + i)[j] -= sums[i * kBlock + j - begin];
    }
  });
}

double dot(const double* a, const double* b, int64_t begin, int64_t end) {
  double sum = 0;
  for (int64_t p = begin; p < end; ++p) sum += a[p] * b[p];
  return sum;
}

}  // namespace

std::optional<int64_t> factor_cholesky(const Tensor& tensor) {
  const Square a = square(tensor, "factor_cholesky");
  std::vector<double> panels;
  for (int64_t begin = 0; begin < a.n; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, a.n);
    subtract_columns_before(a, begin, end, panels);
    for (int64_t j = begin; j < end; ++j) {
      const double pivot = a.row(j)[j] - dot(a.row(j), a.row(j), begin, j);
      if (!(pivot > 0) || std::isinf(pivot)) return j;
      a.row(j)[j] = std::sqrt(pivot);
      for (int64_t i = j + 1; i < end; ++i)
        a.row(i)[j] = (a.row(i)[j] - dot(a.row(i), a.row(j), begin, j)) / a.row(j)[j];
    }
    parallel_for(a.n - end, 16, [&](int64_t first, int64_t last) {
      for (int64_t i = end + first; i < end + last; ++i)
        for (int64_t j = begin; j < end; ++j)
          a.row(i)[j] = (a.row(i)[j] - dot(a.row(i), a.row(j), begin, j)) / a.row(j)[j];
    });
  }
  for (int64_t i = 0; i < a.n; ++i) std::fill(a.row(i) + i + 1, a.row(i) + a.n, 0.0);
  return std::nullopt;
}

void invert_lower(const Tensor& tensor) {
  const Square a = square(tensor, "invert_lower");
  const auto add_product = add_product_here();
  std::vector<double> left, diagonal(kBlock * kBlock);
  // X = L^-1, a block of rows after the other: X[block, before] = -L[block, block]^-1 * L[block, before] * X[before, before].
  for (int64_t begin = 0; begin < a.n; begin += kBlock) {
    const int64_t rows = std::min(kBlock, a.n - begin);
    std::fill(diagonal.begin(), diagonal.end(), 0.0);
    for (int64_t j = 0; j < rows; ++j) {
      for (int64_t i = j; i < rows; ++i) {
        double sum = i == j ? 1.0 : 0.0;
        for (int64_t p = j; p < i; ++p)
          sum -= a.row(begin + i)[begin + p] * diagonal[static_cast<size_t>(p * kBlock + j)];
        diagonal[static_cast<size_t>(i * kBlock + j)] = sum / a.row(begin + i)[begin + i];
      }
    }
    left.resize(static_cast<size_t>(rows * begin));
    for (int64_t i = 0; i < rows; ++i) std::copy_n(a.row(begin + i), begin, left.data() + i * begin);
    const int64_t panels = begin / kPanelColumns;
    parallel_for(panels, 1, [&](int64_t first, int64_t last) {
      double right[kChunk * kPanelColumns], sums[kBlock * kPanelColumns];
      for (int64_t index = first; index < last; ++index) {
        // From both ends, since the first panels are the longest: every thread's piece is as long.
        const int64_t panel = index % 2 == 0 ? index / 2 : panels - 1 - index / 2;
        const int64_t column = panel * kPanelColumns;
        std::fill(std::begin(sums), std::end(sums), 0.0);
        for (int64_t p = column; p < begin; p += kChunk) {  // X is 0 above its diagonal
          const int64_t length = std::min(kChunk, begin - p);
          for (int64_t i = 0; i < length; ++i)
            std::copy_n(a.row(p + i) + column, kPanelColumns, right + i * kPanelColumns);
          add_product(left.data() + p, begin, right, rows, length, sums, kPanelColumns);
        }
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < kPanelColumns; ++j) {
            double sum = 0;
            for (int64_t p = 0; p <= i; ++p)
              sum += diagonal[static_cast<size_t>(i * kBlock + p)] * sums[p * kPanelColumns + j];
            a.row(begin + i)[column + j] = -sum;
          }
        }
      }
    });
    for (int64_t i = 0; i < rows; ++i) {
      std::copy_n(diagonal.data() + i * kBlock, rows, a.row(begin + i) + begin);
      std::fill(a.row(begin + i) + begin + rows, a.row(begin + i) + a.n, 0.0);
    }
  }
}

std::optional<int64_t> factor_inverse(const Tensor& a) {
  const Square reversed = square(a, "factor_inverse");
  const auto reverse = [&] { std::reverse(reversed.data, reversed.data + reversed.n * reversed.n); };
  reverse();  // of rows and of columns at once
  if (const auto pivot = factor_cholesky(a)) return reversed.n - 1 - *pivot;
  invert_lower(a);
  reverse();
  return std::nullopt;
}

}  // namespace ladder

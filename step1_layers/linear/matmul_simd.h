#pragma once
// Kernels of the fast rungs: raw pointers, one thread, one set of functions per instruction set.
//
// A panel is some rows of the weight, that is, some columns of out. k is cut into chunks of kMatmulChunk; in
// a chunk every output element has one accumulator register whose lanes run over k, which is reduced at the
// chunk's end and added to the element's float sum. So the order of additions depends on k alone: not on how
// many rows x has, nor on tiles, panels or threads, and an element has the same bits in every batch.
#include <cstdint>

#include "step1_layers/core/cpu_features.h"
#include "step1_layers/core/dtype.h"

namespace ladder {

inline constexpr int64_t kMatmulChunk = 1024;  // of k: a tile's rows of x stay in the L1 cache
inline constexpr int64_t kMatmulColumns = 48;  // the maximum of columns of a panel: its weights stay in L2

struct MatmulPanel {
  DType dtype = DType::f32;  // of weight and bias
  int64_t m = 0, n = 0, k = 0;
  const void* x = nullptr;  // packed by pack_x: [chunks][m][padded chunk]
  const void* weight = nullptr;
  int64_t weight_stride = 0;  // elements
  const void* bias = nullptr;
  void* out = nullptr;
  int64_t out_stride = 0;
  bool out_f32 = false;
  float* sums = nullptr;       // scratch [m, n]
  float* converted = nullptr;  // scratch [n, kMatmulChunk], unless dtype is f32 or m is 1
};

// k rounded up to whole registers of any instruction set; the packed x is zero there.
static inline constexpr int64_t matmul_padded(int64_t k) {
  return (k + 31) / 32 * 32;
}

// clang-format off
LADDER_DECLARE_FOR_EACH_ISA(
// Rows of x (of panel.dtype, x_stride elements apart) [row_begin, row_end) as floats, chunk by chunk.
void matmul_pack_x(const void* x, int64_t x_stride, const MatmulPanel& panel, int64_t row_begin,
                   int64_t row_end);
// panel.sums = x times the panel's weights.
void matmul_sums(const MatmulPanel& panel);
// out = sums (+ bias), rounded once.
void matmul_store(const MatmulPanel& panel);
)
// clang-format on

}  // namespace ladder

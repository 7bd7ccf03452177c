#pragma once
// Shared by the SIMD kernels that norm a row; only x_simd.cpp files include it.
#include "step1_layers/core/simd.h"

namespace ladder::LADDER_ISA {

// Four partial sums, so that one addition need not wait for the one before it.
template <class T>
inline float sum_of_squares(const T* x, int64_t width) {
  Vec sums[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes)
    for (int j = 0; j < 4; ++j) {
      const Vec v = load(x + i + j * kLanes);
      sums[j] = fma(v, v, sums[j]);
    }
  for (; i + kLanes <= width; i += kLanes) {
    const Vec v = load(x + i);
    sums[0] = fma(v, v, sums[0]);
  }
  if (i < width) {
    const Vec v = load_partial(x + i, width - i);
    sums[1] = fma(v, v, sums[1]);
  }
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace ladder::LADDER_ISA

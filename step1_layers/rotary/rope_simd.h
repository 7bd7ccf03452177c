#pragma once
// The fast rungs of rope.h and of attention/qk_norm_rope_store.h, one copy per instruction set.
#include <cstdint>

#include "step1_layers/core/cpu_features.h"
#include "step1_layers/core/dtype.h"

namespace ladder {

LADDER_DECLARE_FOR_EACH_ISA(template <class T> struct RotaryKernels {
  // Rotates the first 2 * half values of `heads` heads in place. `angles`: half cosines, then half sines.
  static void rotate(T * x, int64_t head_stride, int64_t heads, const float* angles, int64_t half);
  // out = rotate(norm(x)) for one head; no norm where weight is nullptr. out may be x.
  static void norm_rotate(const T* x, const T* weight, float eps, const float* angles, int64_t half,
                          int64_t head_dim, T* out);
};)

}  // namespace ladder

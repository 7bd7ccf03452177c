#pragma once
// The fast rungs of silu_and_mul.h and gelu.h, one copy per instruction set: `rows` rows of `width` outputs,
// row strides in elements.
#include <cstdint>

#include "step1_layers/core/cpu_features.h"
#include "step1_layers/core/dtype.h"

namespace ladder {

LADDER_DECLARE_FOR_EACH_ISA(template <class T> struct ActivationKernels {
  static void silu_and_mul(const T* gate_up, int64_t gate_up_stride, T* out, int64_t out_stride, int64_t rows,
                           int64_t width);
  static void gelu(const T* x, int64_t x_stride, T* out, int64_t out_stride, int64_t rows, int64_t width,
                   bool tanh);
  static void gelu_and_mul(const T* gate_up, int64_t gate_up_stride, T* out, int64_t out_stride, int64_t rows,
                           int64_t width, bool tanh);
};)

}  // namespace ladder

#pragma once
// The fast rungs of layer_norm.h, one copy per instruction set: `rows` rows of `width` values, row strides in
// elements.
#include <cstdint>

#include "step1_layers/core/cpu_features.h"
#include "step1_layers/core/dtype.h"

namespace ladder {

LADDER_DECLARE_FOR_EACH_ISA(template <class T> struct LayerNormKernels {
  static void layer_norm(const T* x, int64_t x_stride, const T* weight, const T* bias, float eps, T* out,
                         int64_t out_stride, int64_t rows, int64_t width);
  static void fused_add_layer_norm(const T* x, int64_t x_stride, T* residual, int64_t residual_stride,
                                   const T* weight, const T* bias, float eps, T* out, int64_t out_stride,
                                   int64_t rows, int64_t width);
};)

}  // namespace ladder

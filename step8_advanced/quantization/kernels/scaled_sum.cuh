#pragma once
// What a sum of products of codes stands for. Only .cu files include this.
#include "step1_layers/core/cuda_kernel.cuh"

namespace ladder {

// sum * weight_scale * row_scale + bias, rounded once: the bits of store_row() (quantized_matmul_rungs.h), whose product is double.
template <class Out, class Sum>
__device__ Out scaled_sum(Sum sum, float weight_scale, float row_scale, float bias) {
  const double scaled = __dmul_rn(__dmul_rn(sum, weight_scale), row_scale);
  return from_float<Out>(static_cast<float>(__dadd_rn(scaled, bias)));
}

}  // namespace ladder

#pragma once
// What kernels of fused products (fused_product.h) write of y, sums in f32. Only .cu files include this.
#include "step1_layers/core/cuda_kernel.cuh"

namespace ladder {

// Epilogue::silu_and_mul, of a gate's column and its up column.
template <class T>
__device__ T silu_and_mul_of(float gate, float up) {
  const float g = to_float(from_float<T>(gate));
  return from_float<T>(__fdividef(g, 1.0f + __expf(-g)) * to_float(from_float<T>(up)));
}

// Epilogue::add, to what was in `out`.
template <class T>
__device__ T sum_with_residual(T residual, float y) {
  return from_float<T>(to_float(residual) + to_float(from_float<T>(y)));
}

}  // namespace ladder

#pragma once
// The half type of CUDA, as much as the emulated kernels use. Rounding to nearest even.
#include "lab/emulator/kernel.h"
#include "step1_layers/core/dtype.h"

struct __half {
  uint16_t __x;
  __half() = default;
  __device__ __half(float x) : __x(__builtin_bit_cast(uint16_t, ladder::f16(x))) {}
  __device__ operator float() const { return static_cast<float>(__builtin_bit_cast(ladder::f16, __x)); }
};
struct alignas(4) __half2 {
  __half x, y;
};

__device__ inline float __half2float(__half x) {
  return static_cast<float>(x);
}
__device__ inline __half __float2half_rn(float x) {
  return {x};
}
__device__ inline __half __float2half(float x) {
  return {x};
}
__device__ inline __half2 __floats2half2_rn(float x, float y) {
  return {x, y};
}
__device__ inline float2 __half22float2(__half2 x) {
  return {x.x, x.y};
}

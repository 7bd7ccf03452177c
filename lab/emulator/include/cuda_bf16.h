#pragma once
// The bf16 type of CUDA, as much as the emulated kernels use. Rounding to nearest even.
#include "lab/emulator/kernel.h"
#include "step1_layers/core/dtype.h"

struct __nv_bfloat16 {
  uint16_t __x;
  __nv_bfloat16() = default;
  __device__ __nv_bfloat16(float x) : __x(__builtin_bit_cast(uint16_t, ladder::bf16(x))) {}
  __device__ operator float() const { return __builtin_bit_cast(float, uint32_t{__x} << 16); }
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

__device__ inline float __bfloat162float(__nv_bfloat16 x) {
  return static_cast<float>(x);
}
__device__ inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return {x};
}
__device__ inline __nv_bfloat16 __float2bfloat16(float x) {
  return {x};
}
__device__ inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {x, y};
}
__device__ inline float2 __bfloat1622float2(__nv_bfloat162 x) {
  return {x.x, x.y};
}

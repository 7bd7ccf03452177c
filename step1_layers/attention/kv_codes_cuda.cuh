#pragma once
// kv_codes.h on a GPU: the codes and scales that quantize_kv makes of the same numbers, bit for bit, and back.
#include <cuda_fp8.h>

#include <cfloat>

#include "step1_layers/attention/kv_codes.h"
#include "step1_layers/core/cuda_kernel.cuh"

namespace ladder {

// What a head's codes stand for, and 1 / scale (0 for a scale of 0).
struct KvScale {
  float scale, lowest, inverse;
};

// A number that a cache can keep.
__device__ inline float kept_number(float x) {
  constexpr float kLargest = FLT_MAX / 2;
  return isnan(x) ? 0.0f : fminf(fmaxf(x, -kLargest), kLargest);
}

// Of the lowest and the highest of a head's kept numbers.
__device__ inline KvScale kv_scale(KvCacheDType kept_as, float low, float high) {
  const bool has_lowest = kept_as == KvCacheDType::int4;
  const float steps = has_lowest ? 15.0f : kept_as == KvCacheDType::fp8 ? 448.0f : 127.0f;
  const float scale = __fdiv_rn(has_lowest ? high - low : fmaxf(high, -low), steps);
  if (scale < FLT_MIN) return {0, has_lowest ? low : 0.0f, 0};
  return {scale, has_lowest ? low : 0.0f, __frcp_rn(scale)};
}

// In the lower bits.
__device__ inline uint32_t kv_code(KvCacheDType kept_as, float x, const KvScale& of) {
  if (kept_as == KvCacheDType::int4)
    return static_cast<uint32_t>(fminf(fmaxf(rintf(__fmul_rn(x - of.lowest, of.inverse)), 0.0f), 15.0f));
  const float scaled = __fmul_rn(x, of.inverse);
  if (kept_as == KvCacheDType::fp8) return __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, __NV_E4M3);
  return static_cast<uint32_t>(static_cast<int>(rintf(fminf(fmaxf(scaled, -127.0f), 127.0f)))) & 255;
}

// Number `i` of a head, as dequantize_kv has it.
__device__ inline float kv_number(KvCacheDType kept_as, const uint8_t* codes, int i,
                                  float2 scale_and_lowest) {
  if (kept_as == KvCacheDType::int4) {
    const auto code = static_cast<float>(codes[i / 2] >> (i % 2 * 4) & 15);
    return __fadd_rn(scale_and_lowest.y, __fmul_rn(code, scale_and_lowest.x));
  }
  const float code = kept_as == KvCacheDType::fp8
                         ? __half2float(__half(__nv_cvt_fp8_to_halfraw(codes[i], __NV_E4M3)))
                         : static_cast<float>(static_cast<int8_t>(codes[i]));
  return code * scale_and_lowest.x;
}

}  // namespace ladder

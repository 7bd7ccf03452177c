#pragma once
// make_grid() and nearest_code() of numbers/grid.h on a GPU: one grid for a row of x. Only .cu files include this.
#include <cuda_fp8.h>

#include <optional>

#include "step1_layers/core/cuda_kernel.cuh"
#include "step8_advanced/quantization/scheme.h"

namespace ladder {

struct Rounding {
  bool rounds = false, dynamic = false, is_float = false, symmetric = false;
  float scale = 1;  // of static activations
  float min_code = 0, max_code = 0;
};

inline Rounding rounding_of(const std::optional<QuantizationArgs>& args, float input_scale) {
  if (!args) return {};
  return {.rounds = true,
          .dynamic = args->dynamic,
          .is_float = args->is_float,
          .symmetric = args->symmetric,
          .scale = input_scale,
          .min_code = static_cast<float>(args->min_code()),
          .max_code = static_cast<float>(args->max_code())};
}

// A row's smallest and largest number, 0 among them, if its grid is made of them; an infinite one if a number makes all of the row
// NaN.
struct RowExtent {
  float low = 0, high = 0;

  __device__ void add(const Rounding& rounding, float value) {
    if (isnan(value)) high = INFINITY;
    if (!rounding.dynamic) return;
    low = fminf(low, value);
    high = fmaxf(high, value);
  }
  // Of all threads of a block; every thread gets it.
  __device__ void gather_block(const Rounding& rounding) {
    if (rounding.symmetric) {
      high = block_max(fmaxf(-low, high));
      low = -high;
    } else {
      low = -block_max(-low);
      high = block_max(high);
    }
  }
  __device__ bool is_bad() const { return isinf(low) || isinf(high); }
};

// What RowExtent has of a symmetric grid, two numbers at a time.
template <class T>
struct RowMagnitude {
  using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  Pair largest{};

  __device__ void add(const Pack<T>& pack) {
    const Pair* pairs = reinterpret_cast<const Pair*>(pack.value);
#pragma unroll
    for (int i = 0; i < Pack<T>::kSize / 2; ++i) largest = __hmax2_nan(largest, __habs2(pairs[i]));
  }
  // Infinite if a number was NaN, or infinite and the grid is made of them.
  __device__ float of_thread(const Rounding& rounding) const {
    const float a = to_float(largest.x), b = to_float(largest.y);
    return isnan(a) || isnan(b) ? INFINITY : rounding.dynamic ? fmaxf(a, b) : 0;
  }
};

struct RowGrid {
  float scale, zero = 0;

  __device__ RowGrid(const Rounding& rounding, const RowExtent& extent) : scale(rounding.scale) {
    if (!rounding.dynamic) return;
    const float absmax = fmaxf(-extent.low, extent.high), codes = rounding.max_code - rounding.min_code;
    scale = rounding.is_float    ? absmax / 448
            : rounding.symmetric ? absmax / (codes / 2)
                                 : (extent.high - extent.low) / codes;
    if (!(scale > 0)) scale = 0x1p-23f;
    if (!rounding.is_float && !rounding.symmetric)
      zero =
          rintf(fminf(fmaxf(rounding.min_code - extent.low / scale, rounding.min_code), rounding.max_code));
  }

  __device__ __nv_fp8_storage_t e4m3(float x) const {
    return __nv_cvt_float_to_fp8(x / scale, __NV_SATFINITE, __NV_E4M3);
  }
  __device__ float integer(const Rounding& rounding, float x) const {
    return integer_of(rounding, x / scale);
  }
  __device__ float integer_of(const Rounding& rounding, float quotient) const {
    return rintf(fminf(fmaxf(quotient + zero, rounding.min_code), rounding.max_code));
  }
  __device__ float round(const Rounding& rounding, float x) const {
    if (rounding.is_float) return to_float(__half(__nv_cvt_fp8_to_halfraw(e4m3(x), __NV_E4M3))) * scale;
    return (integer(rounding, x) - zero) * scale;
  }
};

// Numbers of a row over its scale, as their codes need them, without a division's twenty instructions: from a reciprocal that is made
// once, with two corrections, the bits of a division (Markstein, "Computation of elementary functions on the IBM RISC System/6000
// processor", 1990). Both are brought where nothing overflows or loses bits to underflow; quotients that no code reaches become 512.
struct RowQuotient {
  float factor, scale, reciprocal, limit;

  __device__ explicit RowQuotient(float of_row)
      : factor(of_row < 0x1p-40f  ? 0x1p100f
               : of_row > 0x1p40f ? 0x1p-100f
                                  : 1),
        scale(of_row * factor),
        reciprocal(1 / scale),
        limit(512 * scale) {}
  __device__ float operator()(float x) const {
    x = fminf(fmaxf(x * factor, -limit), limit);
    float quotient = x * reciprocal;
#pragma unroll
    for (int i = 0; i < 2; ++i) quotient = fmaf(fmaf(-quotient, scale, x), reciprocal, quotient);
    return quotient;
  }
};

// A pack's codes. Of a row that is NaN: zeros.
template <bool is_float, class T>
__device__ uint2 codes_of(const Pack<T>& pack, const Rounding& rounding, const RowGrid& grid, bool is_bad) {
  static_assert(Pack<T>::kSize == sizeof(uint2));
  if (is_bad) return {0, 0};
  const RowQuotient over_scale(grid.scale);
  float x[Pack<T>::kSize];
#pragma unroll
  for (int c = 0; c < Pack<T>::kSize; ++c) x[c] = over_scale(to_float(pack.value[c]));
  uint32_t words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float* of_word = x + 4 * i;
    if constexpr (is_float) {
      const uint32_t low = __nv_cvt_float2_to_fp8x2({of_word[0], of_word[1]}, __NV_SATFINITE, __NV_E4M3);
      const uint32_t high = __nv_cvt_float2_to_fp8x2({of_word[2], of_word[3]}, __NV_SATFINITE, __NV_E4M3);
      words[i] = low | high << 16;
    } else {
      words[i] = 0;
#pragma unroll
      for (int c = 0; c < 4; ++c)
        words[i] |= (static_cast<uint32_t>(static_cast<int>(grid.integer_of(rounding, of_word[c]))) & 0xff)
                    << 8 * c;
    }
  }
  return {words[0], words[1]};
}

}  // namespace ladder

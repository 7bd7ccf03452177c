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
    return rintf(fminf(fmaxf(x / scale + zero, rounding.min_code), rounding.max_code));
  }
  __device__ float round(const Rounding& rounding, float x) const {
    if (rounding.is_float) return to_float(__half(__nv_cvt_fp8_to_halfraw(e4m3(x), __NV_E4M3))) * scale;
    return (integer(rounding, x) - zero) * scale;
  }
};

// A pack's codes. Of a row that is NaN: zeros.
template <bool is_float, class T>
__device__ uint2 codes_of(const Pack<T>& pack, const Rounding& rounding, const RowGrid& grid, bool is_bad) {
  static_assert(Pack<T>::kSize == sizeof(uint2));
  alignas(uint2) uint8_t codes[sizeof(uint2)];
#pragma unroll
  for (int c = 0; c < Pack<T>::kSize; ++c) {
    const float value = to_float(pack.value[c]);
    codes[c] = is_bad     ? 0
               : is_float ? grid.e4m3(value)
                          : static_cast<uint8_t>(static_cast<int>(grid.integer(rounding, value)));
  }
  return *reinterpret_cast<const uint2*>(codes);
}

}  // namespace ladder

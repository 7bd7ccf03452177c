#include "step8_advanced/quantization/kernels/activations_simd.h"

#include "step1_layers/core/simd.h"

namespace ladder::LADDER_ISA {

namespace {

template <class T>
void widen(const T* x, int64_t k, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) store(out + i, load(x + i));
  if (i < k) store_partial(out + i, load_partial(x + i, k - i), k - i);
}

}  // namespace

void widen_row(const void* x, DType dtype, int64_t k, float* out) {
  if (dtype == DType::f32)
    widen(static_cast<const float*>(x), k, out);
  else if (dtype == DType::bf16)
    widen(static_cast<const bf16*>(x), k, out);
  else
    widen(static_cast<const f16*>(x), k, out);
}

RowRange range_of_row(const float* x, int64_t k) {
  Vec low = zero(), high = zero();
  NanWatch watch;
  const auto look_at = [&](Vec value) {
    watch.look_at(value, value);
    low = min(value, low);
    high = max(value, high);
  };
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) look_at(load(x + i));
  if (i < k) look_at(load_partial(x + i, k - i));
  return {-reduce_max(zero() - low), reduce_max(high), watch.found()};
}

void round_to_integers(float* values, int64_t k, float scale, float zero_point, float min_code,
                       float max_code) {
  const Vec divisor = broadcast(scale), zero = broadcast(zero_point);
  const Vec low = broadcast(min_code), high = broadcast(max_code);
  const auto rounded = [&](Vec x) {  // a NaN becomes the lowest code
    return round_to_int(min(max(x / divisor + zero, low), high)) - zero;
  };
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) store(values + i, rounded(load(values + i)));
  if (i < k) store_partial(values + i, rounded(load_partial(values + i, k - i)), k - i);
}

// Half to even at the third bit of the mantissa; below the smallest normal number, 2^-6, at a whole number of 2^-9, which
// is a float's last place near 3 * 2^13.
void round_to_e4m3(float* values, int64_t k, float scale) {
  for (int64_t i = 0; i < k; ++i) {
    float x = values[i] / scale;
    x = x < 448.0f ? x : 448.0f;
    x = x > -448.0f ? x : -448.0f;
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7ffff + (bits >> 20 & 1)) & 0xfff00000;
    float normal;
    __builtin_memcpy(&normal, &bits, sizeof normal);
    const float subnormal = (x + 0x1.8p14f) - 0x1.8p14f;
    values[i] = __builtin_fabsf(x) < 0x1p-6f ? subnormal : normal;
  }
}

}  // namespace ladder::LADDER_ISA

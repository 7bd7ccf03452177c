#include "step1_layers/rotary/rope_simd.h"

#include "step1_layers/core/simd.h"
#include "step1_layers/norm/sum_of_squares_simd.h"

namespace ladder::LADDER_ISA {

// >>> task 1.6.simd: the rotation on registers of pairs, alone and after the norm of a head
namespace {

// Turns `count` pairs (x1, x2).
template <class T>
inline void turn(Vec x1, Vec x2, Vec cosine, Vec sine, T* out1, T* out2, int64_t count) {
  const Vec y1 = fma(x1, cosine, zero() - x2 * sine);
  const Vec y2 = fma(x2, cosine, x1 * sine);
  if (count == kLanes) {
    store(out1, y1);
    store(out2, y2);
  } else {
    store_partial(out1, y1, count);
    store_partial(out2, y2, count);
  }
}

template <class T>
inline Vec load_up_to(const T* p, int64_t count) {
  return count == kLanes ? load(p) : load_partial(p, count);
}

}  // namespace

template <class T>
void RotaryKernels<T>::rotate(T* x, int64_t head_stride, int64_t heads, const float* angles, int64_t half) {
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t count = half - i < kLanes ? half - i : kLanes;
    const Vec cosine = load_up_to(angles + i, count), sine = load_up_to(angles + half + i, count);
    for (int64_t head = 0; head < heads; ++head) {
      T* x1 = x + head * head_stride + i;
      T* x2 = x1 + half;
      turn(load_up_to(x1, count), load_up_to(x2, count), cosine, sine, x1, x2, count);
    }
  }
}

template <class T>
void RotaryKernels<T>::norm_rotate(const T* x, const T* weight, float eps, const float* angles, int64_t half,
                                   int64_t head_dim, T* out) {
  float scale = 1.0f;
  if (weight)
    scale = 1.0f / __builtin_sqrtf(sum_of_squares(x, head_dim) / static_cast<float>(head_dim) + eps);
  auto normed = [&](int64_t i, int64_t count) {
    const Vec value = load_up_to(x + i, count);
    return weight ? value * broadcast(scale) * load_up_to(weight + i, count) : value;
  };
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t count = half - i < kLanes ? half - i : kLanes;
    turn(normed(i, count), normed(half + i, count), load_up_to(angles + i, count),
         load_up_to(angles + half + i, count), out + i, out + half + i, count);
  }
  for (int64_t i = 2 * half; i < head_dim; i += kLanes) {
    const int64_t count = head_dim - i < kLanes ? head_dim - i : kLanes;
    store_partial(out + i, normed(i, count), count);
  }
}
// <<< task 1.6.simd

template struct RotaryKernels<float>;
template struct RotaryKernels<bf16>;
template struct RotaryKernels<f16>;

}  // namespace ladder::LADDER_ISA

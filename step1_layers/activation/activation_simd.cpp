#include "step1_layers/activation/activation_simd.h"

#include "step1_layers/core/simd.h"

namespace ladder::LADDER_ISA {

namespace {

inline Vec sigmoid(Vec x) {
  return broadcast(1.0f) / (broadcast(1.0f) + exp(zero() - x));
}

// >>> task 1.2: SiLU and GELU on a register of values
inline Vec silu(Vec x) {
  return x * sigmoid(x);
}

// (1 + tanh u) / 2 = sigmoid(2u)
inline Vec gelu_tanh(Vec x) {
  const Vec cubic = x * x * x;
  const Vec u = fma(cubic, broadcast(0.044715f), x) * broadcast(1.5957691216f);  // 2 sqrt(2 / pi)
  return x * sigmoid(u);
}

// gelu(x) = max(x, 0) - |x| / 2 erfc(|x| / sqrt 2), which keeps its relative accuracy far below zero where
// 1 + erf cancels. erfc(z) = e^(-z^2) t P(t) with t = 1 / (1 + 0.35 z); P of degree 9 is a least-squares fit
// of our own, relative error 4e-8 before rounding.
inline Vec gelu_erf(Vec x) {
  const Vec magnitude = max(x, zero() - x);
  const Vec t = broadcast(1.0f) / fma(magnitude, broadcast(0.35f * 0.70710678f), broadcast(1.0f));
  Vec p = broadcast(4.077900946e-02f);
  p = fma(p, t, broadcast(-1.742270440e-01f));
  p = fma(p, t, broadcast(2.228109092e-01f));
  p = fma(p, t, broadcast(-8.957839012e-02f));
  p = fma(p, t, broadcast(1.435904205e-01f));
  p = fma(p, t, broadcast(1.132617295e-01f));
  p = fma(p, t, broadcast(1.632169038e-01f));
  p = fma(p, t, broadcast(1.852075607e-01f));
  p = fma(p, t, broadcast(1.974725872e-01f));
  p = fma(p, t, broadcast(1.974662691e-01f));
  const Vec erfc = exp(magnitude * magnitude * broadcast(-0.5f)) * t * p;
  return max(x, zero()) - broadcast(0.5f) * magnitude * erfc;
}
// <<< task 1.2

// out = f(first) * second, or f(first) where there is no second factor.
template <bool gated, class T, class Fn>
void for_each_row(const T* x, int64_t x_stride, T* out, int64_t out_stride, int64_t rows, int64_t width,
                  Fn&& f) {
  for (int64_t row = 0; row < rows; ++row, x += x_stride, out += out_stride) {
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
      Vec y = f(load(x + i));
      if constexpr (gated) y = y * load(x + width + i);
      store(out + i, y);
    }
    if (i < width) {
      Vec y = f(load_partial(x + i, width - i));
      if constexpr (gated) y = y * load_partial(x + width + i, width - i);
      store_partial(out + i, y, width - i);
    }
  }
}

}  // namespace

template <class T>
void ActivationKernels::silu_and_mul(const T* gate_up, int64_t gate_up_stride, T* out, int64_t out_stride,
                                     int64_t rows, int64_t width) {
  for_each_row<true>(gate_up, gate_up_stride, out, out_stride, rows, width, [](Vec x) { return silu(x); });
}

template <class T>
void ActivationKernels::gelu(const T* x, int64_t x_stride, T* out, int64_t out_stride, int64_t rows,
                             int64_t width, bool tanh) {
  if (tanh)
    for_each_row<false>(x, x_stride, out, out_stride, rows, width, [](Vec v) { return gelu_tanh(v); });
  else
    for_each_row<false>(x, x_stride, out, out_stride, rows, width, [](Vec v) { return gelu_erf(v); });
}

template <class T>
void ActivationKernels::gelu_and_mul(const T* gate_up, int64_t gate_up_stride, T* out, int64_t out_stride,
                                     int64_t rows, int64_t width, bool tanh) {
  if (tanh)
    for_each_row<true>(gate_up, gate_up_stride, out, out_stride, rows, width,
                       [](Vec v) { return gelu_tanh(v); });
  else
    for_each_row<true>(gate_up, gate_up_stride, out, out_stride, rows, width,
                       [](Vec v) { return gelu_erf(v); });
}

#define LADDER_INSTANTIATE(T)                                                                         \
  template void ActivationKernels::silu_and_mul<T>(const T*, int64_t, T*, int64_t, int64_t, int64_t); \
  template void ActivationKernels::gelu<T>(const T*, int64_t, T*, int64_t, int64_t, int64_t, bool);   \
  template void ActivationKernels::gelu_and_mul<T>(const T*, int64_t, T*, int64_t, int64_t, int64_t, bool);
LADDER_INSTANTIATE(float)
LADDER_INSTANTIATE(bf16)
LADDER_INSTANTIATE(f16)
#undef LADDER_INSTANTIATE

}  // namespace ladder::LADDER_ISA

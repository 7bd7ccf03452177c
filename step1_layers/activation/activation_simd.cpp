#include "step1_layers/activation/activation_simd.h"

#include "step1_layers/core/simd.h"

namespace ladder::LADDER_ISA {

namespace {

// erfc(z) = e^(-z^2) t P(t) with t = 1 / (1 + 0.35 z): the coefficients of P, degree 9 first, are a
// least-squares fit of our own, relative error 4e-8 before rounding.
constexpr float kErfc[] = {4.077900946e-02f, -1.742270440e-01f, 2.228109092e-01f, -8.957839012e-02f,
                           1.435904205e-01f, 1.132617295e-01f,  1.632169038e-01f, 1.852075607e-01f,
                           1.974725872e-01f, 1.974662691e-01f};
constexpr float kErfcStep = 0.35f;
constexpr float kRootHalf = 0.70710678f;
// The cubic approximation's (gelu.h), and 2 sqrt(2 / pi).
constexpr float kGeluCubic = 0.044715f, kGeluScale = 1.5957691216f;

}  // namespace

// >>> task 1.2.simd: SiLU and both forms of GELU on registers of values, alone and times the second half of a row
namespace {

inline Vec sigmoid(Vec x) {
  return broadcast(1.0f) / (broadcast(1.0f) + exp(zero() - x));
}

inline Vec silu(Vec x) {
  return x * sigmoid(x);
}

// (1 + tanh u) / 2 = sigmoid(2u)
inline Vec gelu_tanh(Vec x) {
  const Vec cubic = x * x * x;
  const Vec u = fma(cubic, broadcast(kGeluCubic), x) * broadcast(kGeluScale);
  return x * sigmoid(u);
}

// gelu(x) = max(x, 0) - |x| / 2 erfc(|x| / sqrt 2), which keeps its relative accuracy far below zero where
// 1 + erf cancels.
inline Vec gelu_erf(Vec x) {
  const Vec magnitude = max(x, zero() - x);
  const Vec t = broadcast(1.0f) / fma(magnitude, broadcast(kErfcStep * kRootHalf), broadcast(1.0f));
  Vec p = broadcast(kErfc[0]);
  for (int i = 1; i < 10; ++i) p = fma(p, t, broadcast(kErfc[i]));
  const Vec erfc = exp(magnitude * magnitude * broadcast(-0.5f)) * t * p;
  return max(x, zero()) - broadcast(0.5f) * magnitude * erfc;
}

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
void ActivationKernels<T>::silu_and_mul(const T* gate_up, int64_t gate_up_stride, T* out, int64_t out_stride,
                                        int64_t rows, int64_t width) {
  for_each_row<true>(gate_up, gate_up_stride, out, out_stride, rows, width, [](Vec x) { return silu(x); });
}

template <class T>
void ActivationKernels<T>::gelu(const T* x, int64_t x_stride, T* out, int64_t out_stride, int64_t rows,
                                int64_t width, bool tanh) {
  if (tanh)
    for_each_row<false>(x, x_stride, out, out_stride, rows, width, [](Vec v) { return gelu_tanh(v); });
  else
    for_each_row<false>(x, x_stride, out, out_stride, rows, width, [](Vec v) { return gelu_erf(v); });
}

template <class T>
void ActivationKernels<T>::gelu_and_mul(const T* gate_up, int64_t gate_up_stride, T* out, int64_t out_stride,
                                        int64_t rows, int64_t width, bool tanh) {
  if (tanh)
    for_each_row<true>(gate_up, gate_up_stride, out, out_stride, rows, width,
                       [](Vec v) { return gelu_tanh(v); });
  else
    for_each_row<true>(gate_up, gate_up_stride, out, out_stride, rows, width,
                       [](Vec v) { return gelu_erf(v); });
}
// <<< task 1.2.simd

template struct ActivationKernels<float>;
template struct ActivationKernels<bf16>;
template struct ActivationKernels<f16>;

}  // namespace ladder::LADDER_ISA

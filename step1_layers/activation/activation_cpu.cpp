#include "step1_layers/activation/activation_cpu.h"

#include <cmath>

namespace ladder {

namespace {

constexpr float kGeluCubic = 0.044715f, kGeluScale = 1.5957691216f;  // gelu.h; 2 sqrt(2 / pi)
constexpr float kRootHalf = 0.7071067812f;

}  // namespace

// >>> task 1.2.loop: SiLU and both forms of GELU, alone and times the second half of a row, value by value
namespace {

float silu(float x) {
  return x / (1.0f + std::exp(-x));
}

float gelu(float x, GeluKind kind) {
  if (kind == GeluKind::tanh)
    return x /
           (1.0f + std::exp(-kGeluScale * (x + kGeluCubic * x * x * x)));  // (1 + tanh u) / 2, uncancelled
  return 0.5f * x * std::erfc(-kRootHalf * x);  // 1 + erf(z) = erfc(-z), which does not cancel
}

template <class Fn>
void for_each_gated(const Tensor& gate_up, const Tensor& out, Fn&& activation) {
  with_float_type(out.dtype(), "an activation", [&](auto tag) {
    using T = decltype(tag);
    const int64_t width = out.dim(1);
    for (int64_t row = 0; row < out.dim(0); ++row) {
      const T* gate = gate_up.data<T>() + row * gate_up.stride(0);
      const T* up = gate + width;
      T* result = out.data<T>() + row * out.stride(0);
      for (int64_t i = 0; i < width; ++i)
        result[i] = T(activation(static_cast<float>(gate[i])) * static_cast<float>(up[i]));
    }
  });
}

}  // namespace

void silu_and_mul_loop(const OpContext&, const SiluAndMulArgs& args) {
  for_each_gated(args.gate_up, args.out, silu);
}

void gelu_and_mul_loop(const OpContext&, const GeluAndMulArgs& args) {
  for_each_gated(args.gate_up, args.out, [&](float x) { return gelu(x, args.kind); });
}

void gelu_loop(const OpContext&, const GeluArgs& args) {
  with_float_type(args.out.dtype(), "gelu", [&](auto tag) {
    using T = decltype(tag);
    for (int64_t row = 0; row < args.out.dim(0); ++row) {
      const T* x = args.x.data<T>() + row * args.x.stride(0);
      T* result = args.out.data<T>() + row * args.out.stride(0);
      for (int64_t i = 0; i < args.out.dim(1); ++i) result[i] = T(gelu(static_cast<float>(x[i]), args.kind));
    }
  });
}
// <<< task 1.2.loop

}  // namespace ladder

#pragma once
// Task 1.2: GELU (Hendrycks and Gimpel, 2016, arXiv 1606.08415), alone and gated.
//
//   erf:   gelu(x) = x / 2 * (1 + erf(x / sqrt 2))                                    exact
//   tanh:  gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))            its approximation
//
// A checkpoint was trained with one of the two ("gelu", "gelu_pytorch_tanh" in config.json); they differ by
// up to 5e-4.
#include <cstdint>
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

enum class GeluKind : uint8_t { erf, tanh };

struct GeluArgs {
  Tensor x;    // [tokens, width]
  Tensor out;  // [tokens, width], same dtype; may be x itself
  GeluKind kind = GeluKind::erf;
};

struct GeluAndMulArgs {
  Tensor gate_up;  // [tokens, 2 * width]: gate, then up
  Tensor out;      // [tokens, width], same dtype: gelu(gate) * up
  GeluKind kind = GeluKind::erf;
};

std::span<const Variant<GeluArgs>> gelu_variants();
std::span<const Variant<GeluAndMulArgs>> gelu_and_mul_variants();

// f32, bf16 or f16, computed in float and rounded once. Rows may be strided, elements of a row are adjacent.
// Error: shapes or dtypes that do not fit together.
void gelu(const OpContext& ctx, const Tensor& x, const Tensor& out, GeluKind kind);
void gelu_and_mul(const OpContext& ctx, const Tensor& gate_up, const Tensor& out, GeluKind kind);

}  // namespace ladder

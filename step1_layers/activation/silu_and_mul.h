#pragma once
// Task 1.2: the gated activation of Llama and Qwen MLPs (SwiGLU: Shazeer, 2020, arXiv 2002.05202).
//
//   out[t][i] = silu(gate_up[t][i]) * gate_up[t][width + i],   silu(x) = x / (1 + e^-x)
//
// The gate and up projections are one matrix product (task 1.4), so their results lie side by side in a row.
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

struct SiluAndMulArgs {
  Tensor gate_up;  // [tokens, 2 * width]: gate, then up
  Tensor out;      // [tokens, width], same dtype
};

std::span<const Variant<SiluAndMulArgs>> silu_and_mul_variants();

// f32, bf16 or f16, computed in float and rounded once. Rows may be strided, elements of a row are adjacent.
// Error: shapes or dtypes that do not fit together.
void silu_and_mul(const OpContext& ctx, const Tensor& gate_up, const Tensor& out);

}  // namespace ladder

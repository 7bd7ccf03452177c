#pragma once
// The expert that computes every token, added to what the chosen ones have computed (Qwen2-MoE).
//
//   out[t] += sigmoid(gate_logits[t]) * shared[t]
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

struct AddSharedExpertArgs {
  Tensor gate_logits;  // [tokens, 1] f32, adjacent
  Tensor shared;       // [tokens, hidden] f32, bf16 or f16
  Tensor out;          // [tokens, hidden], same dtype
};

std::span<const Variant<AddSharedExpertArgs>> add_shared_expert_variants();

// In float, rounded once. Rows may be strided, elements of a row are adjacent. Error: shapes or dtypes that do not fit
// together.
void add_shared_expert(const OpContext& ctx, const Tensor& gate_logits, const Tensor& shared,
                       const Tensor& out);

}  // namespace ladder

#pragma once
// Task 1.9: the MLPs of a mixture of experts, each run on the tokens that were routed to it.
//
//   out[t] = sum over j of weights[t][j] * down[e] * (silu(gate[e] * x[t]) * (up[e] * x[t])),   e = expert_ids[t][j]
//
// Tokens x top_k pairs of a token and an expert have to be computed. How many of them an expert gets is known on the
// device only, and differs from step to step: a captured graph must stay right, so rungs on a GPU take their counts from
// device memory. With few tokens the weights of the experts that are touched are what must be moved: of E experts, with
// k per token, about E * (1 - (1 - k / E)^tokens) of them.
#include <cstdint>
#include <functional>
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

struct MoeExpertsArgs {
  Tensor x;  // [tokens, hidden] f32, bf16 or f16
  Tensor
      expert_ids;  // [tokens, top_k] i32; -1: of no expert here (another rank's, or a spare row), adds nothing
  Tensor weights;  // [tokens, top_k] f32
  Tensor gate_up;  // [experts, 2 * width, hidden] x's dtype: gate, then up
  Tensor down;     // [experts, hidden, width] x's dtype
  Tensor out;      // [tokens, hidden] x's dtype
};

std::span<const Variant<MoeExpertsArgs>> moe_experts_variants();

// Products are summed in float; gate and up, the activation, and the weighted sum of a token's experts are each rounded
// once to x's dtype. (A rung may round an expert's weighted part of the sum, too.) A token never meets an expert twice. No
// tokens: nothing is done. Rows of x and out may be strided, all else is contiguous.
// Error: shapes or dtypes that do not fit together. Expert numbers are not looked at beforehand: on the CPU one that does
// not exist is an Error, on a GPU it adds nothing.
void moe_experts(const OpContext& ctx, const MoeExpertsArgs& args);

// The products of experts whose weights are no dense tensors (a quantized format): one call for all of an expert's tokens.
struct ExpertProducts {
  using Product =
      std::function<void(const OpContext& ctx, int64_t expert, const Tensor& x, const Tensor& out)>;
  int64_t experts = 0, width = 0;
  Product gate_up;  // x [m, hidden], out [m, 2 * width] of x's dtype
  Product down;     // x [m, width], out [m, hidden] f32
};

// As moe_experts(), on the CPU, with these products; args.gate_up and args.down are undefined. Error: as moe_experts; another
// device.
void moe_experts_by_products(const OpContext& ctx, const MoeExpertsArgs& args,
                             const ExpertProducts& products);

}  // namespace ladder

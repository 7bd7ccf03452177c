#pragma once
// Task 8.4: the MLPs of a mixture of experts (step1_layers/moe/experts.h) whose matrices are in codes.
//
//   out[t] = sum over j of weights[t][j] * down[e] * h'[t][j],   h[t][j] = silu(gate[e] * x'[t]) * (up[e] * x'[t]),   e = expert_ids[t][j]
//
//   gate, up, down   what the codes stand for (quantized_weight.h); x', h' are x and h as the scheme of their product rounds them
//
// What must be moved for few tokens are the weights of the experts that are touched, so codes of 4 bits are worth here what they are
// in a dense layer. With many tokens an expert's codes are read once for all of its own, and become numbers on the way to the tensor
// cores.
#include <cstdint>
#include <optional>
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"
#include "step8_advanced/quantization/quantized_weight.h"
#include "step8_advanced/quantization/scheme.h"

namespace ladder {

// One of the two matrices of all experts, one expert's rows after the other's, and how what it multiplies is rounded.
struct ExpertMatrices {
  const QuantizedWeight* weight = nullptr;      // as QuantizedMatmulArgs has it
  std::optional<QuantizationArgs> activations;  // nullopt: taken as it is
  Tensor input_scales;  // of static activations, or NVFP4's G: f32 [experts], on x's device; else undefined
};

struct QuantizedExpertsArgs {
  Tensor x;           // [tokens, hidden] f32, bf16 or f16
  Tensor expert_ids;  // [tokens, top_k] i32; -1: of no expert here, adds nothing
  Tensor weights;     // [tokens, top_k] f32
  int64_t experts = 0;
  ExpertMatrices gate_up;  // [experts * 2 * width, hidden]: of each expert gate, then up
  ExpertMatrices down;     // [experts * hidden, width]
  Tensor out;              // [tokens, hidden] x's dtype

  int64_t width() const { return gate_up.weight->n / experts / 2; }
};

std::span<const Variant<QuantizedExpertsArgs>> quantized_experts_variants();

// Rounded as moe_experts() rounds; where x is rounded on a GPU, to x's dtype once more. No tokens: nothing is done. Rows of x and out
// may be strided, all else is contiguous. Precondition of the weights: as QuantizedMatmulArgs.
// Error: shapes, dtypes or activations that do not fit. Expert numbers: as moe_experts().
void quantized_experts(const OpContext& ctx, const QuantizedExpertsArgs& args);

}  // namespace ladder

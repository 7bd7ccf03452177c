#pragma once
// What the rungs on a GPU do with x before they multiply, as prepare_x.h on the CPU.
#include <optional>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step8_advanced/quantization/kernels/quantized_matmul.h"

namespace ladder {

// Rows that are pairs of a token and an expert, rounded by a stored scale or put in an order of the expert's own.
struct RowsOfExperts {
  Tensor expert_ids;     // i32, as many as out has rows; those of no expert here leave their row as it is
  Tensor scales;         // f32 [experts]; undefined: none is stored, and `columns` has orders of the experts
  int pairs_of_row = 1;  // pair p takes row p / pairs_of_row of x
};

// Rows of x as round_activations() has them, in x's dtype (values times their scale; a row that has none is NaN), columns in the
// order of `columns` if that is defined, 0 where it is -1. columns [k], or with of_experts [experts, k] too. out [m, k] contiguous. The
// scheme is one that a GPU rounds (round_activations.h).
void prepare_x_cuda(const OpContext& ctx, const Tensor& x, const Tensor& columns,
                    const std::optional<QuantizationArgs>& activations, float input_scale, const Tensor& out,
                    const RowsOfExperts* of_experts = nullptr);

// x as the call multiplies it: args.x itself where there is nothing to do, else made in the arena.
Tensor prepared_x(const OpContext& ctx, const QuantizedMatmulArgs& args, Arena& arena);
int64_t prepared_x_workspace(const QuantizedMatmulArgs& args);

}  // namespace ladder

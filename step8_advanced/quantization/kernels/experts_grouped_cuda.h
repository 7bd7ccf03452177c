#pragma once
// One product of the grouped experts in codes (experts_grouped.cuh), launched by a file for each type of codes.
#include "step1_layers/core/context.h"
#include "step1_layers/moe/tile_plan_cuda.h"
#include "step8_advanced/quantization/quantized_weight.h"

namespace ladder {

struct ExpertsGroupedArgs {
  Tensor x;              // [.., k] bf16 or f16, contiguous, as permute_columns() leaves them
  int pairs_of_row = 1;  // pair p takes row p / pairs_of_row of x
  const QuantizedWeight* weight = nullptr;  // in records, an expert's rows in whole tiles, k in whole 64s
  int64_t experts = 0;
  bool paired = false;  // gate and up: out is silu(gate) * up
  TilePlan plan;
  int tokens_of_tile = 64;    // or 128
  Tensor weights;             // of pairs
  Tensor out;                 // x's dtype [pairs, columns], columns in whole 32s. Not paired: times weights
  bool out_permuted = false;  // as permute_columns() leaves rows
};

void experts_grouped_int4(const OpContext& ctx, const ExpertsGroupedArgs& args);
void experts_grouped_int8(const OpContext& ctx, const ExpertsGroupedArgs& args);
void experts_grouped_fp8(const OpContext& ctx, const ExpertsGroupedArgs& args);

// Rows of x [m, k], packed, in the order in which a record's lanes take them: of each 32 columns word i of pack t stands at word t of
// pack i. out [m, k] contiguous, k in whole 32s.
void permute_columns(const OpContext& ctx, const Tensor& x, const Tensor& out);

}  // namespace ladder

#pragma once
// One product of the stream of experts in codes (experts_stream.cuh), launched by a file for each type of codes.
#include "step1_layers/core/context.h"
#include "step1_layers/moe/tile_plan_cuda.h"
#include "step8_advanced/quantization/quantized_weight.h"

namespace ladder {

struct ExpertsStreamArgs {
  // Rows of bf16 or f16, in whole 16-byte packs; in bf16, beside int4 or int8, below 2^64 (rows_stream_cuda.h).
  Tensor x;
  int pairs_of_row = 1;                     // pair p takes row p / pairs_of_row of x
  const QuantizedWeight* weight = nullptr;  // in records, an expert's rows in whole tiles
  int64_t experts = 0;
  bool paired = false;     // gate and up: out is silu(gate) * up
  TilePlan plan;           // without tiles: tile p is pair p
  int tokens_of_tile = 8;  // or 16
  Tensor expert_ids, weights;
  Tensor
      out;  // paired: x's dtype [pairs, rows of an expert / 2]; else f32 [pairs, rows of an expert], times weights
};

void experts_stream_int4(const OpContext& ctx, const ExpertsStreamArgs& args);
void experts_stream_int8(const OpContext& ctx, const ExpertsStreamArgs& args);
void experts_stream_fp8(const OpContext& ctx, const ExpertsStreamArgs& args);

}  // namespace ladder

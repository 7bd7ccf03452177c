// The rung of quantized_experts for few tokens of an expert: which launches, and what they multiply.
#include "step8_advanced/quantization/kernels/experts_stream_cuda.h"

#include "step1_layers/core/packed.h"
#include "step1_layers/moe/combine_results_cuda.h"
#include "step8_advanced/quantization/kernels/experts_x_cuda.h"
#include "step8_advanced/quantization/kernels/quantized_experts_cuda.h"
#include "step8_advanced/quantization/kernels/weight_records.h"

namespace ladder {

namespace {

// With more pairs than this per expert, on average, codes are read too often: of 128 experts, 8 a token, 64 tokens take 226 us so and 320 in
// tiles, 256 (16 pairs) 351 and 335.
constexpr int64_t kPairsPerExpert = 14;

void launch(const OpContext& ctx, const ExpertsStreamArgs& args) {
  switch (args.weight->type) {
    case WeightCodes::int4:
      return experts_stream_int4(ctx, args);
    case WeightCodes::int8:
      return experts_stream_int8(ctx, args);
    default:
      return experts_stream_fp8(ctx, args);
  }
}

// The tiles of gate and of up are an expert's own.
bool in_whole_tiles(const QuantizedWeight& weight, int64_t rows) {
  return weight.records.bytes.defined() && rows % kRecordRows == 0 && weight.k % 8 == 0;
}

bool rows_are_packed(const QuantizedExpertsArgs& args) {
  const bool prepared = args.gate_up.activations || args.gate_up.weight->columns.defined();
  return (prepared || is_packed(args.x)) && is_packed(args.out);
}

}  // namespace

bool are_experts_in_tiles(const QuantizedExpertsArgs& args) {
  return dtype_size(args.x.dtype()) == 2 && expert_rows_are_rounded_on_a_gpu(args) && rows_are_packed(args) &&
         in_whole_tiles(*args.gate_up.weight, args.width()) &&
         in_whole_tiles(*args.down.weight, args.x.dim(1)) && args.experts <= kMaxPlannedExperts;
}

bool quantized_experts_take_stream(const QuantizedExpertsArgs& args) {
  return are_experts_in_tiles(args) && args.expert_ids.numel() <= kPairsPerExpert * args.experts;
}

void quantized_experts_stream(const OpContext& ctx, const QuantizedExpertsArgs& args) {
  Arena& arena = *ctx.arena;
  ArenaScope scope(arena);
  const int64_t pairs = args.expert_ids.numel(), top_k = args.expert_ids.dim(1);
  ExpertsStreamArgs product;
  product.experts = args.experts;
  product.expert_ids = args.expert_ids;
  product.weights = args.weights;
  product.plan.max_tiles = static_cast<int>(pairs);
  if (args.x.dim(0) > 1) {
    product.tokens_of_tile = pairs <= args.experts ? 8 : 16;
    product.plan = plan_tiles(ctx, args.expert_ids, args.experts, product.tokens_of_tile);
  }
  const Tensor activated = arena.take({pairs, args.width()}, args.x.dtype());
  const Tensor results = arena.take({pairs, args.x.dim(1)}, DType::f32);
  const auto multiply = [&](const ExpertMatrices& matrices, const RowsOfPairs& from, bool paired,
                            const Tensor& out) {
    const RowsOfPairs rows = prepared_rows(ctx, matrices, args.expert_ids, from, arena);
    product.x = rows.rows;
    product.pairs_of_row = rows.pairs_of_row;
    product.weight = matrices.weight;
    product.paired = paired;
    product.out = out;
    launch(ctx, product);
  };
  multiply(args.gate_up, {args.x, static_cast<int>(top_k)}, true, activated);
  multiply(args.down, {activated, 1}, false, results);
  combine_results(ctx, args.expert_ids, args.experts, results, args.out);
}

}  // namespace ladder

// The rung of quantized_experts for many tokens of an expert: which launches, and what they multiply.
#include "step8_advanced/quantization/kernels/experts_grouped_cuda.h"

#include "step1_layers/moe/combine_results_cuda.h"
#include "step8_advanced/quantization/kernels/experts_x_cuda.h"
#include "step8_advanced/quantization/kernels/quantized_experts_cuda.h"

namespace ladder {

namespace {

// With more pairs than this per expert, on average, tiles are of 128 tokens.
constexpr int64_t kManyPerExpert = 48;

void launch(const OpContext& ctx, const ExpertsGroupedArgs& args) {
  switch (args.weight->type) {
    case WeightCodes::int4:
      return experts_grouped_int4(ctx, args);
    case WeightCodes::int8:
      return experts_grouped_int8(ctx, args);
    default:
      return experts_grouped_fp8(ctx, args);
  }
}

}  // namespace

bool quantized_experts_take_grouped(const QuantizedExpertsArgs& args) {
  return are_experts_in_tiles(args) && args.x.dim(1) % 64 == 0 && args.width() % 64 == 0 &&
         args.gate_up.weight->k % 64 == 0 && args.down.weight->k % 64 == 0;
}

void quantized_experts_grouped(const OpContext& ctx, const QuantizedExpertsArgs& args) {
  Arena& arena = *ctx.arena;
  ArenaScope scope(arena);
  const int64_t pairs = args.expert_ids.numel();
  const DType dtype = args.x.dtype();
  ExpertsGroupedArgs product;
  product.experts = args.experts;
  product.weights = args.weights;
  product.tokens_of_tile = pairs > kManyPerExpert * args.experts ? 128 : 64;
  product.plan = plan_tiles(ctx, args.expert_ids, args.experts, product.tokens_of_tile);
  const auto multiply = [&](const ExpertMatrices& matrices, const RowsOfPairs& rows, const Tensor& out) {
    product.x = rows.rows;
    product.pairs_of_row = rows.pairs_of_row;
    product.weight = matrices.weight;
    product.out = out;
    launch(ctx, product);
  };
  const auto permuted = [&](const RowsOfPairs& from) {
    const RowsOfPairs to{arena.take({from.rows.dim(0), from.rows.dim(1)}, dtype), from.pairs_of_row};
    permute_columns(ctx, from.rows, to.rows);
    return to;
  };

  RowsOfPairs activated{arena.take({pairs, args.width()}, dtype), 1};
  const RowsOfPairs x = prepared_rows(ctx, args.gate_up, args.expert_ids,
                                      {args.x, static_cast<int>(args.expert_ids.dim(1))}, arena);
  product.paired = true;
  product.out_permuted = !args.down.activations && !args.down.weight->columns.defined();
  multiply(args.gate_up, permuted(x), activated.rows);
  if (!product.out_permuted)
    activated = permuted(prepared_rows(ctx, args.down, args.expert_ids, activated, arena));
  const Tensor results = arena.take({pairs, args.x.dim(1)}, dtype);
  product.paired = product.out_permuted = false;
  multiply(args.down, activated, results);
  combine_results(ctx, args.expert_ids, args.experts, results, args.out);
}

}  // namespace ladder

#include "step8_advanced/quantization/kernels/quantized_experts.h"

#include "step1_layers/core/error.h"
#include "step1_layers/moe/experts.h"
#include "step8_advanced/quantization/kernels/quantized_matmul.h"
#include "step8_advanced/quantization/kernels/round_activations.h"
#include "step8_advanced/quantization/kernels/weight_rows.h"
#ifdef LADDER_HAS_CUDA
#include "step8_advanced/quantization/kernels/quantized_experts_cuda.h"
#endif

namespace ladder {

namespace {

// On the CPU: pairs sorted by expert, two products for each expert that has any.
void quantized_experts_per_expert(const OpContext& ctx, const QuantizedExpertsArgs& args) {
  const auto product_with = [](const ExpertMatrices& matrices, int64_t rows) {
    return [&matrices, rows](const OpContext& here, int64_t expert, const Tensor& x, const Tensor& out) {
      const QuantizedWeight weight = rows_of(*matrices.weight, expert * rows, rows);
      quantized_matmul(
          here, {.x = x,
                 .weight = &weight,
                 .activations = matrices.activations,
                 .input_scale =
                     matrices.input_scales.defined() ? matrices.input_scales.data<float>()[expert] : 1.0f,
                 .bias = {},
                 .out = out});
    };
  };
  moe_experts_by_products(ctx, {args.x, args.expert_ids, args.weights, {}, {}, args.out},
                          {args.experts, args.width(), product_with(args.gate_up, 2 * args.width()),
                           product_with(args.down, args.x.dim(1))});
}

// Columns that have no feature, which a rank of a row-parallel weight in act-order has, are for GPUs only here.
bool takes_per_expert(const QuantizedExpertsArgs& args) {
  return args.gate_up.weight->k == args.x.dim(1) && args.down.weight->k == args.width();
}

void check_matrices(const QuantizedExpertsArgs& args, const ExpertMatrices& matrices, int64_t rows,
                    int64_t features, std::string_view what) {
  const QuantizedWeight& weight = *matrices.weight;
  LADDER_CHECK(weight.n == args.experts * rows && (weight.columns.defined() || weight.k == features),
               "quantized_experts: {} of {} experts is [{}, {}], expected [{}, {}]", what, args.experts,
               weight.n, weight.k, args.experts * rows, features);
  if (weight.columns.defined()) {
    expect_dtype(weight.columns, DType::i32, "quantized_experts: columns");
    if (weight.columns.ndim() == 2)
      expect_shape(weight.columns, {args.experts, weight.k}, "quantized_experts: columns");
    else
      expect_shape(weight.columns, {weight.k}, "quantized_experts: columns");
  }
  if (!matrices.activations) return;
  check_activations(*matrices.activations, 1);
  if (!have_stored_scale(*matrices.activations)) return;
  expect_shape(matrices.input_scales, {args.experts}, "quantized_experts: input_scales");
  expect_dtype(matrices.input_scales, DType::f32, "quantized_experts: input_scales");
}

}  // namespace

std::span<const Variant<QuantizedExpertsArgs>> quantized_experts_variants() {
  static constexpr Variant<QuantizedExpertsArgs> table[] = {
      {.name = "per_expert",
       .idea = "pairs sorted by expert, two products with its codes for each expert that has any",
       .supports = takes_per_expert,
       .run = quantized_experts_per_expert},
#ifdef LADDER_HAS_CUDA
      {.name = "naive",
       .device = DeviceType::cuda,
       .idea = "a warp per value, each weight dequantized where it is used",
       .supports = quantized_experts_take_naive,
       .run = quantized_experts_naive},
      {.name = "written_out",
       .device = DeviceType::cuda,
       .idea = "many tokens: all experts written out as x's dtype, then the dense experts",
       .batch_invariant = false,
       .supports = quantized_experts_take_written_out,
       .run = quantized_experts_written_out},
      {.name = "grouped",
       .device = DeviceType::cuda,
       .idea =
           "many tokens: wgmma, the weight from registers, where codes become numbers while the part before is multiplied",
       .min_arch = 90,
       .batch_invariant = false,
       .supports = quantized_experts_take_grouped,
       .run = quantized_experts_grouped},
      {.name = "stream",
       .device = DeviceType::cuda,
       .idea =
           "few tokens: records of the touched experts as a stream, codes become operands of mma in registers",
       .min_arch = 90,
       .batch_invariant = false,
       .supports = quantized_experts_take_stream,
       .run = quantized_experts_stream},
#endif
  };
  return table;
}

void quantized_experts(const OpContext& ctx, const QuantizedExpertsArgs& args) {
  LADDER_CHECK(args.gate_up.weight != nullptr && args.down.weight != nullptr && args.experts > 0,
               "quantized_experts: no weights");
  expect_shape(args.x, {-1, -1}, "quantized_experts: x");
  const int64_t tokens = args.x.dim(0), hidden = args.x.dim(1);
  expect_shape(args.expert_ids, {tokens, -1}, "quantized_experts: expert_ids");
  expect_shape(args.weights, {tokens, args.expert_ids.dim(1)}, "quantized_experts: weights");
  expect_shape(args.out, {tokens, hidden}, "quantized_experts: out");
  expect_dtype(args.expert_ids, DType::i32, "quantized_experts: expert_ids");
  expect_dtype(args.weights, DType::f32, "quantized_experts: weights");
  expect_dtype(args.out, args.x.dtype(), "quantized_experts: out");
  for (const Tensor* tensor : {&args.expert_ids, &args.weights})
    LADDER_CHECK(tensor->is_contiguous(), "quantized_experts: ids and weights must be contiguous, found {}",
                 tensor->str());
  for (const Tensor* tensor : {&args.x, &args.out})
    LADDER_CHECK(hidden <= 1 || tensor->stride(1) == 1,
                 "quantized_experts: the elements of a row must be adjacent");
  check_matrices(args, args.gate_up, 2 * args.width(), hidden, "gate_up");
  check_matrices(args, args.down, hidden, args.width(), "down");
  if (tokens > 0)
    run_variant<QuantizedExpertsArgs>("quantized_experts", quantized_experts_variants(), ctx, args);
}

}  // namespace ladder

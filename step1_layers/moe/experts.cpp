#include "step1_layers/moe/experts.h"

#include "step1_layers/core/error.h"
#include "step1_layers/moe/experts_cpu.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/moe/moe_cuda.h"
#endif

namespace ladder {

std::span<const Variant<MoeExpertsArgs>> moe_experts_variants() {
  static constexpr Variant<MoeExpertsArgs> table[] = {
      {.name = "loop", .idea = "pair after pair, value by value", .run = moe_experts_loop},
      {.name = "per_expert",
       .idea = "pairs sorted by expert, two products for each expert that has any",
       .run = moe_experts_per_expert},
#ifdef LADDER_HAS_CUDA
      {.name = "naive", .device = DeviceType::cuda, .idea = "a warp per value", .run = moe_experts_cuda},
      {.name = "per_expert",
       .device = DeviceType::cuda,
       .idea = "the library's products, every expert on all tokens: what was not routed to it is not added",
       .batch_invariant = false,
       .supports = moe_experts_takes_per_expert,
       .run = moe_experts_cuda_per_expert},
      {.name = "grouped",
       .device = DeviceType::cuda,
       .idea =
           "wgmma on tiles of one expert's tokens, found on the device; SiLU in the first product's registers",
       .min_arch = 90,
       .batch_invariant = false,
       .supports = moe_experts_takes_grouped,
       .run = moe_experts_cuda_grouped},
      {.name = "overlapped",
       .device = DeviceType::cuda,
       .idea = "copies, products and stores of different tiles at once; weights by the copy engine",
       .min_arch = 90,
       .batch_invariant = false,
       .supports = moe_experts_takes_grouped,
       .run = moe_experts_cuda_overlapped},
      {.name = "stream",
       .device = DeviceType::cuda,
       .idea = "few tokens: the weights of touched experts as a stream, tokens as the columns of mma",
       .min_arch = 80,
       .batch_invariant = false,
       .supports = moe_experts_takes_stream,
       .run = moe_experts_cuda_stream},
#endif
  };
  return table;
}

namespace {

// All but the matrices.
void check_tokens(const MoeExpertsArgs& args) {
  expect_shape(args.x, {-1, -1}, "moe_experts: x");
  expect_shape(args.expert_ids, {args.x.dim(0), -1}, "moe_experts: expert_ids");
  const int64_t tokens = args.x.dim(0), hidden = args.x.dim(1);
  expect_shape(args.weights, {tokens, args.expert_ids.dim(1)}, "moe_experts: weights");
  expect_shape(args.out, {tokens, hidden}, "moe_experts: out");
  expect_dtype(args.expert_ids, DType::i32, "moe_experts: expert_ids");
  expect_dtype(args.weights, DType::f32, "moe_experts: weights");
  expect_dtype(args.out, args.x.dtype(), "moe_experts: out");
  for (const Tensor* tensor : {&args.expert_ids, &args.weights})
    LADDER_CHECK(tensor->is_contiguous(), "moe_experts: ids and weights must be contiguous, found {}",
                 tensor->str());
  for (const Tensor* tensor : {&args.x, &args.out})
    LADDER_CHECK(hidden <= 1 || tensor->stride(1) == 1,
                 "moe_experts: the elements of a row must be adjacent");
}

}  // namespace

void moe_experts(const OpContext& ctx, const MoeExpertsArgs& args) {
  check_tokens(args);
  const int64_t tokens = args.x.dim(0), hidden = args.x.dim(1);
  expect_shape(args.gate_up, {-1, -1, hidden}, "moe_experts: gate_up");
  const int64_t experts = args.gate_up.dim(0), width = args.gate_up.dim(1) / 2;
  LADDER_CHECK(args.gate_up.dim(1) == 2 * width,
               "moe_experts: gate_up: expected gate and up rows, as many of each, found {}",
               args.gate_up.str());
  expect_shape(args.down, {experts, hidden, width}, "moe_experts: down");
  for (const Tensor* tensor : {&args.gate_up, &args.down}) {
    expect_dtype(*tensor, args.x.dtype(), "moe_experts: gate_up and down");
    LADDER_CHECK(tensor->is_contiguous(), "moe_experts: matrices must be contiguous, found {}",
                 tensor->str());
  }
  if (tokens > 0) run_variant<MoeExpertsArgs>("moe_experts", moe_experts_variants(), ctx, args);
}

void moe_experts_by_products(const OpContext& ctx, const MoeExpertsArgs& args,
                             const ExpertProducts& products) {
  LADDER_CHECK(ctx.device.is_cpu(), "moe_experts: products of their own are taken on the CPU, found {}",
               device_name(ctx.device));
  check_tokens(args);
  if (args.x.dim(0) > 0) run_experts_one_by_one(ctx, args, products);
}

}  // namespace ladder

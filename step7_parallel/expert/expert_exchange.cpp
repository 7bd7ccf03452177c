#include "step7_parallel/expert/expert_exchange.h"

#include "step1_layers/core/error.h"
#ifdef LADDER_HAS_CUDA
#include "step7_parallel/expert/gpu/gpu_expert_exchange.h"
#endif

namespace ladder {
namespace {

constexpr Variant<ExpertExchangeArgs> kVariants[] = {
    {.name = "all_gather",
     .idea = "every rank gets all tokens and leaves out what is elsewhere; the parts are summed",
     .run = expert_exchange_all_gather},
    {.name = "all_to_all",
     .idea = "a token goes to the ranks that have one of its experts, once to each",
     .supports = [](const ExpertExchangeArgs& args) { return !args.rank_of.empty(); },
     .run = expert_exchange_all_to_all},
#ifdef LADDER_HAS_CUDA
    {.name = "nccl",
     .device = DeviceType::cuda,
     .idea = "all_gather by the library, of equal sizes",
     .batch_invariant = false,  // the order of its sums is its own
     .supports = exchange_takes_nccl,
     .run = expert_exchange_nccl},
    {.name = "peer",
     .device = DeviceType::cuda,
     .idea = "a token into the memory of the ranks that have one of its experts, and its parts back",
     .supports = exchange_takes_peer,
     .run = expert_exchange_peer},
#endif
};

void check(const OpContext& ctx, const ExpertExchangeArgs& args) {
  const int64_t tokens = args.x.dim(0);
  expect_shape(args.x, {-1, -1}, "expert_exchange: x");
  expect_shape(args.expert_ids, {tokens, -1}, "expert_exchange: expert_ids");
  expect_shape(args.weights, {tokens, args.expert_ids.dim(1)}, "expert_exchange: weights");
  expect_shape(args.out, {tokens, args.x.dim(1)}, "expert_exchange: out");
  expect_dtype(args.expert_ids, DType::i32, "expert_exchange: expert_ids");
  expect_dtype(args.weights, DType::f32, "expert_exchange: weights");
  expect_dtype(args.out, args.x.dtype(), "expert_exchange: out");
  for (const Tensor* tensor : {&args.x, &args.expert_ids, &args.weights, &args.out})
    LADDER_CHECK(tensor->device() == ctx.device && tensor->is_contiguous(),
                 "expert_exchange: expected tensors on {} without gaps, found {} on {}",
                 device_name(ctx.device), tensor->str(), device_name(tensor->device()));
  if (!ctx.device.is_cpu()) {
    LADDER_CHECK(args.gpu != nullptr, "expert_exchange: on {} it needs memory that was made for it (gpu)",
                 device_name(ctx.device));
    return;
  }
  for (const int32_t rank : args.rank_of)
    LADDER_CHECK(rank >= 0 && rank < args.ranks->size(), "expert_exchange: there is no rank {}, they are {}",
                 rank, args.ranks->size());
  for (int64_t i = 0; i < args.expert_ids.numel(); ++i) {
    const int32_t expert = args.expert_ids.data<int32_t>()[i];
    LADDER_CHECK(expert >= -1 && (args.rank_of.empty() || expert < std::ssize(args.rank_of)),
                 "expert_exchange: there is no expert {}, they are {}", expert, args.rank_of.size());
  }
}

}  // namespace

std::span<const Variant<ExpertExchangeArgs>> expert_exchange_variants() {
  return kVariants;
}

void expert_exchange(const OpContext& ctx, const ExpertExchangeArgs& args) {
  check(ctx, args);
  run_variant<ExpertExchangeArgs>("expert_exchange", expert_exchange_variants(), ctx, args);
}

}  // namespace ladder

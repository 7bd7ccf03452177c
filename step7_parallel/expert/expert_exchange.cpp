#include "step7_parallel/expert/expert_exchange.h"

#include "step1_layers/core/error.h"

namespace ladder {
namespace {

constexpr Variant<ExpertExchangeArgs> kVariants[] = {
    {.name = "all_gather",
     .idea = "every rank gets all tokens and leaves out what is elsewhere; the parts are summed",
     .run = expert_exchange_all_gather},
    {.name = "all_to_all",
     .idea = "a token goes to the ranks that have one of its experts, once to each",
     .run = expert_exchange_all_to_all},
};

void check(const ExpertExchangeArgs& args) {
  const int64_t tokens = args.x.dim(0);
  expect_shape(args.x, {-1, -1}, "expert_exchange: x");
  expect_shape(args.expert_ids, {tokens, -1}, "expert_exchange: expert_ids");
  expect_shape(args.weights, {tokens, args.expert_ids.dim(1)}, "expert_exchange: weights");
  expect_shape(args.out, {tokens, args.x.dim(1)}, "expert_exchange: out");
  expect_dtype(args.expert_ids, DType::i32, "expert_exchange: expert_ids");
  expect_dtype(args.weights, DType::f32, "expert_exchange: weights");
  expect_dtype(args.out, args.x.dtype(), "expert_exchange: out");
  for (const Tensor* tensor : {&args.x, &args.expert_ids, &args.weights, &args.out})
    LADDER_CHECK(tensor->device().is_cpu() && tensor->is_contiguous(),
                 "expert_exchange: expected tensors on the CPU without gaps, found {}", tensor->str());
  for (const int32_t rank : args.rank_of)
    LADDER_CHECK(rank >= 0 && rank < args.ranks->size(), "expert_exchange: there is no rank {}, they are {}",
                 rank, args.ranks->size());
  for (int64_t i = 0; i < args.expert_ids.numel(); ++i) {
    const int32_t expert = args.expert_ids.data<int32_t>()[i];
    LADDER_CHECK(expert >= -1 && expert < std::ssize(args.rank_of),
                 "expert_exchange: there is no expert {}, they are {}", expert, args.rank_of.size());
  }
}

}  // namespace

std::span<const Variant<ExpertExchangeArgs>> expert_exchange_variants() {
  return kVariants;
}

void expert_exchange(const OpContext& ctx, const ExpertExchangeArgs& args) {
  check(args);
  run_variant<ExpertExchangeArgs>("expert_exchange", expert_exchange_variants(), ctx, args);
}

}  // namespace ladder

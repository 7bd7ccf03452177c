#include "step7_parallel/context/context_methods.h"

#include <numeric>

#include "step7_parallel/context/all_gather_attention.h"
#include "step7_parallel/context/ring_attention.h"
#include "step7_parallel/context/ulysses_attention.h"

namespace ladder {
namespace {

bool shares_heads(const ContextAttentionArgs& args) {
  return ulysses_obstacle(args.k.dim(1), args.group->size()).empty();
}

bool has_two_dimensions(const ContextAttentionArgs& args) {
  return args.inner->size() * args.outer->size() == args.group->size() &&
         ulysses_obstacle(args.k.dim(1), args.inner->size()).empty();
}

constexpr Variant<ContextAttentionArgs> kVariants[] = {
    {.name = "all_gather", .idea = "every rank gets the keys of all", .run = all_gather_attention},
    {.name = "ring",
     .idea = "keys go round while attention computes; partial results are merged",
     .batch_invariant = false,  // a row's sums are cut where the ranks' shares of its prompt are
     .run = ring_attention},
    {.name = "ulysses_ring",
     .idea = "groups exchange heads, and pass keys round between them",
     .batch_invariant = false,
     .supports = has_two_dimensions,
     .run = ulysses_ring_attention},
    {.name = "ulysses",
     .idea = "all tokens of some heads to each rank, and back",
     .supports = shares_heads,
     .run = ulysses_attention},
};

}  // namespace

std::span<const Variant<ContextAttentionArgs>> context_attention_variants() {
  return kVariants;
}

void context_attention(const OpContext& ctx, const ContextAttentionArgs& args) {
  check_context_attention(ctx, args);
  run_variant("context_attention", context_attention_variants(), ctx, args);
}

}  // namespace ladder

#include "step7_parallel/context/context_methods.h"

#include <array>

#include "step7_parallel/context/all_gather_attention.h"
#include "step7_parallel/context/lse_merge.h"
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

constexpr std::array kMethods = std::to_array<Variant<ContextAttentionArgs>>({
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
});

// The same code takes tensors of both devices.
constexpr auto kVariants = [] {
  std::array<Variant<ContextAttentionArgs>, 2 * kMethods.size()> both{};
  for (size_t i = 0; i < kMethods.size(); ++i) {
    both[i] = both[kMethods.size() + i] = kMethods[i];
    both[kMethods.size() + i].device = DeviceType::cuda;
  }
  return both;
}();

}  // namespace

std::span<const Variant<ContextAttentionArgs>> context_attention_variants() {
  return kVariants;
}

std::string_view fastest_context_method(const OpContext& ctx, const ContextAttentionArgs& args) {
  if (ctx.device.is_cpu()) return {};
  // Up to here a layer's keys come over NVLink in less time than the ring's partial results are merged in.
  constexpr int64_t kShort = 32768;
  int64_t keys = 0;
  for (int rank = 0; rank < args.group->size(); ++rank)
    keys += context_keys(args.prompts, args.group->size(), rank);
  return keys <= kShort ? "all_gather" : "ring";
}

void warm_up_context_attention(const OpContext& ctx, DType dtype, int64_t heads, int64_t kv_heads,
                               int64_t dim) {
  const auto zeros = [&](const Shape& shape, DType type) { return Tensor::zeros(shape, type, ctx.device); };
  // One row, many, and few behind so many keys that they are cut into parts.
  for (const ContextPrompt& prompt : {ContextPrompt{1}, {64}, {16, {8192}}}) {
    ContextAttentionArgs args;
    args.prompts = {prompt};
    args.q = zeros({context_rows(args.prompts, 1, 0), heads, dim}, dtype);
    args.k = args.v = zeros({context_keys(args.prompts, 1, 0), kv_heads, dim}, dtype);
    args.out = zeros(args.q.shape(), dtype);
    for (const auto& method : context_attention_variants())
      if (can_run(method, ctx, args)) method.run(ctx, args);
  }
  const Tensor parts = zeros({2, 1, heads, dim}, dtype), part_lse = zeros({2, 1, heads}, DType::f32),
               so_far = zeros({1, heads, dim}, DType::f32), lse = zeros({1, heads}, DType::f32);
  for (const Tensor& out : {so_far, zeros({1, heads, dim}, dtype)})
    merge_parts(ctx, {.parts = parts, .part_lse = part_lse, .out = out, .lse = lse});
  device_synchronize(ctx.device, ctx.stream);
}

void context_attention(const OpContext& ctx, const ContextAttentionArgs& args) {
  check_context_attention(ctx, args);
  run_variant("context_attention", context_attention_variants(), ctx, args,
              fastest_context_method(ctx, args));
}

}  // namespace ladder

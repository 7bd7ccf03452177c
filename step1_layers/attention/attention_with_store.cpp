#include "step1_layers/attention/attention_with_store.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/attention/attention_with_store_cuda.h"
#endif

namespace ladder {

namespace {

void attention_with_store_sequence(const OpContext& ctx, const AttentionWithStoreArgs& args) {
  const PagedAttentionArgs& attention = args.attention;
  qk_norm_rope_store(ctx, args.store);
  paged_attention(ctx, attention.q, attention.cache, attention.metadata, attention.scale, attention.out,
                  attention.lse);
}

constexpr std::string_view kOp = "attention_with_store";
constexpr std::string_view kSequence = "qk_norm_rope_store, then paged_attention";

constexpr Variant<AttentionWithStoreArgs> kVariants[] = {
    {.name = "sequence", .idea = kSequence, .run = attention_with_store_sequence},
#ifdef LADDER_HAS_CUDA
    {.name = "sequence", .device = DeviceType::cuda, .idea = kSequence, .run = attention_with_store_sequence},
    {.name = "fused",
     .device = DeviceType::cuda,
     .idea =
         "decode of few sequences: the attention kernel norms and rotates its queries and stores the new key itself",
     .min_arch = 90,
     .batch_invariant = false,
     .supports = attention_with_store_can_fuse,
     .run = attention_with_store_cuda_fused},
#endif
};

}  // namespace

std::span<const Variant<AttentionWithStoreArgs>> attention_with_store_variants() {
  return kVariants;
}

Choice<AttentionWithStoreArgs> choose_attention_with_store(const OpContext& ctx,
                                                           const AttentionWithStoreArgs& args) {
  const bool forced_part =
      !ctx.forced_kernel("qk_norm_rope_store").empty() || !ctx.forced_kernel("paged_attention").empty();
  return choose_variant<AttentionWithStoreArgs>(kOp, kVariants, ctx, args, forced_part ? "sequence" : "");
}

void attention_with_store(const OpContext& ctx, const QkNormRopeStoreArgs& store,
                          const AttentionMetadata& metadata, double scale, const Tensor& out) {
  const AttentionWithStoreArgs args{store, {store.q, store.cache, metadata, scale, out, {}}};
  check_qk_norm_rope_store(store, kOp);
  check_paged_attention(ctx, args.attention);
  choose_attention_with_store(ctx, args).variant->run(ctx, args);
}

}  // namespace ladder

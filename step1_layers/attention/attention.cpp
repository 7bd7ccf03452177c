// The table of attention.h and its checks.
#include "step1_layers/attention/attention.h"

#include "step1_layers/attention/attention_cpu.h"
#include "step1_layers/attention/attention_fast.h"
#include "step1_layers/core/simd_rungs.h"

namespace ladder {

namespace {

// The paged kernel, the whole sequence being one block.
template <template <class> class Kernels>
void causal_attention_fast(const OpContext& ctx, const CausalAttentionArgs& args) {
  const Tensor &q = args.q, &k = args.k, &v = args.v, &out = args.out;
  const int32_t only_block = 0;
  with_float_type(q.dtype(), "causal_attention", [&](auto tag) {
    using T = decltype(tag);
    AttentionWork<T> work{};
    work.q = q.data<T>();
    work.q_token_stride = q.stride(0);
    work.q_head_stride = q.stride(1);
    work.tokens = q.dim(0);
    work.group = q.dim(1) / k.dim(1);
    work.first_position = k.dim(0) - q.dim(0);
    work.more_keys = 1;
    work.k = k.data<T>();
    work.v = v.data<T>();
    work.k_slot_stride = k.stride(0);
    work.v_slot_stride = v.stride(0);
    work.block_table = &only_block;
    work.block_size = k.dim(0);
    work.k_dim = q.dim(2);
    work.v_dim = v.dim(2);
    work.scale = static_cast<float>(args.scale);
    work.out = out.data<T>();
    work.out_token_stride = out.stride(0);
    work.out_head_stride = out.stride(1);
    detail::attend_all<Kernels, T>(ctx, k.dim(1), work.group, work.k_dim, work.v_dim, k.stride(1),
                                   v.stride(1), false, [&](auto&& fn) { fn(work); });
  });
}

constexpr Variant<CausalAttentionArgs> kVariants[] = {
    {.name = "loop",
     .idea = "all scores of a row, then their softmax, then the mix of values; sums in double",
     .run = causal_attention_loop},
    LADDER_SIMD_RUNGS(
        causal_attention_fast, AttentionKernels,
        "tiles of 64 keys, online softmax, all rows that read a tile share it; split among threads"),
};

}  // namespace

std::span<const Variant<CausalAttentionArgs>> causal_attention_variants() {
  return kVariants;
}

void causal_attention(const OpContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                      const Tensor& out) {
  expect_shape(q, {-1, -1, -1}, "causal_attention: q");
  expect_shape(k, {-1, -1, q.dim(2)}, "causal_attention: k");
  expect_shape(v, {k.dim(0), k.dim(1), -1}, "causal_attention: v");
  expect_shape(out, {q.dim(0), q.dim(1), v.dim(2)}, "causal_attention: out");
  for (const Tensor* tensor : {&k, &v, &out}) expect_dtype(*tensor, q.dtype(), "causal_attention");
  LADDER_CHECK(q.dim(0) <= k.dim(0), "causal_attention: {} queries are more than {} keys", q.dim(0),
               k.dim(0));
  LADDER_CHECK(k.dim(1) > 0 && q.dim(1) % k.dim(1) == 0,
               "causal_attention: {} query heads are no multiple of {} key/value heads", q.dim(1), k.dim(1));
  LADDER_CHECK(q.stride(2) == 1 && k.stride(2) == 1 && v.stride(2) == 1 && out.stride(2) == 1,
               "causal_attention: the elements of a head must be adjacent");
  LADDER_CHECK(ctx.arena != nullptr, "causal_attention needs an arena in the context");
  if (q.dim(0) == 0) return;
  run_variant<CausalAttentionArgs>("causal_attention", causal_attention_variants(), ctx,
                                   {q, k, v, scale, out});
}

}  // namespace ladder

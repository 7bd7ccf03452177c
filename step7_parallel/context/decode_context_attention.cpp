#include "step7_parallel/context/decode_context_attention.h"

#include "step1_layers/attention/paged_attention.h"
#include "step1_layers/attention/qk_norm_rope_store.h"
#include "step1_layers/attention/store_kv.h"
#include "step1_layers/core/arena.h"
#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"
#include "step7_parallel/context/head_exchange.h"
#include "step7_parallel/context/local_keys.h"

namespace ladder {
namespace {

class DecodeContextAttention final : public Attention {
 public:
  DecodeContextAttention(const OpContext& ctx, int ranks, int64_t run, const KvCacheSpec& cache)
      : ranks_(ranks), round_(ranks, run, neighbours(ctx).mine(), ctx.device), cache_(cache) {
    if (!ctx.device.is_cpu()) call_once(ctx);
  }

  KvCacheSpec kv_cache_spec() const override { return cache_; }
  void forward(const OpContext& ctx, const QkNormRopeStoreArgs& args, const AttentionMetadata& metadata,
               double scale, const Tensor& out) const override;

 private:
  Neighbours neighbours(const OpContext& ctx) const { return {tp_group(ctx), ranks_}; }
  void call_once(OpContext ctx) const;

  int ranks_;
  LocalRound round_;
  KvCacheSpec cache_;
};

// A kernel's first call loads it: here, where no rank is ahead by more than a call (GpuCommunicator).
void DecodeContextAttention::call_once(OpContext ctx) const {
  Arena arena(ctx.device);
  ctx.arena = &arena;
  const Tensor mine = Tensor::zeros({1, 1, cache_.v_dim}, cache_.dtype, ctx.device),
               all = Tensor::zeros({1, ranks_, cache_.v_dim}, cache_.dtype, ctx.device),
               lse = Tensor::zeros({1, ranks_}, DType::f32, ctx.device);
  gather_heads(ctx, {neighbours(ctx), mine, all, lse});
  device_synchronize(ctx.device, ctx.stream);
  merge_heads(ctx, {neighbours(ctx), all, lse, mine});
  device_synchronize(ctx.device, ctx.stream);
}

// A cache's slots, one after the other: [slots, heads, dim].
Tensor token_by_token(const Tensor& keys) {
  return keys.view({keys.dim(0) * keys.dim(1), keys.dim(2), keys.dim(3)});
}

}  // namespace

// >>> task 7.11: store, gather the queries, attend here, bring back and merge
void DecodeContextAttention::forward(const OpContext& ctx, const QkNormRopeStoreArgs& args,
                                     const AttentionMetadata& metadata, double scale,
                                     const Tensor& out) const {
  const ArenaScope scope(*ctx.arena);
  const LocalStep step = local_step(ctx, round_, metadata, args.slot_mapping, args.cache);
  const bool are_single_rows = metadata.max_query_len <= 1;
  QkNormRopeStoreArgs store = args;
  store.slot_mapping = are_single_rows ? step.slots : step.fresh_slots;
  if (!are_single_rows) store.cache = step.fresh;
  qk_norm_rope_store(ctx, store);

  const int64_t rows = metadata.num_tokens, heads = args.q.dim(1), v_dim = out.dim(2);
  const DType dtype = args.q.dtype();
  const Tensor q = args.q.rows(rows);
  Tensor own, own_lse;
  if (!are_single_rows) {
    store_kv(ctx, token_by_token(step.fresh.k), token_by_token(step.fresh.v), step.slots, args.cache);
    own = ctx.arena->take({rows, heads, v_dim}, dtype);
    own_lse = ctx.arena->take({rows, heads}, DType::f32);
    paged_attention(ctx, q, step.fresh, step.fresh_keys, scale, own, own_lse);
  }

  const Tensor queries = ctx.arena->take({rows, ranks_ * heads, args.q.dim(2)}, dtype);
  const Tensor parts = ctx.arena->take({rows, ranks_ * heads, v_dim}, dtype);
  const Tensor lse = ctx.arena->take({rows, ranks_ * heads}, DType::f32);
  gather_heads(ctx, {neighbours(ctx), q, queries, lse});
  unmasked_paged_attention(ctx, queries, args.cache, step.local, scale, parts, lse);
  merge_heads(ctx, {neighbours(ctx), parts, lse, out.rows(rows), own, own_lse});
}
// <<< task 7.11

std::function<std::unique_ptr<Attention>(const OpContext& ctx, int64_t layer, const KvCacheSpec& cache)>
decode_context_attention(int ranks, int64_t run) {
  if (ranks == 1) return {};
  return [ranks, run](const OpContext& ctx, int64_t, const KvCacheSpec& cache) -> std::unique_ptr<Attention> {
    LADDER_CHECK(
        cache.num_kv_heads == 1 && tp_group(ctx).size() % ranks == 0,
        "--decode-context-parallel-size {} with {} KV heads on each of {} ranks: expected one, and a divisor of "
        "the ranks",
        ranks, cache.num_kv_heads, tp_group(ctx).size());
    LADDER_CHECK(cache.kept_as == KvCacheDType::automatic,
                 "--decode-context-parallel-size {}: expected keys kept as they are, not as codes", ranks);
    return std::make_unique<DecodeContextAttention>(ctx, ranks, run, cache);
  };
}

}  // namespace ladder

#include "step7_parallel/context/prefill_context_attention.h"

#include "step1_layers/attention/paged_attention.h"
#include "step1_layers/attention/qk_norm_rope_store.h"
#include "step1_layers/attention/store_kv.h"
#include "step1_layers/core/arena.h"
#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"

namespace ladder {
namespace {

class PrefillContextAttention final : public Attention {
 public:
  explicit PrefillContextAttention(const KvCacheSpec& cache) : cache_(cache) {}

  KvCacheSpec kv_cache_spec() const override { return cache_; }
  void forward(const OpContext& ctx, const QkNormRopeStoreArgs& args, const AttentionMetadata& metadata,
               double scale, const Tensor& out) const override;

 private:
  KvCacheSpec cache_;
};

}  // namespace

// >>> task 7.12: the keys of all ranks into this rank's cache, and attention of its own rows
void PrefillContextAttention::forward(const OpContext& ctx, const QkNormRopeStoreArgs& args,
                                      const AttentionMetadata& metadata, double scale,
                                      const Tensor& out) const {
  Communicator& group = cp_group(ctx);
  const ArenaScope scope(*ctx.arena);
  const int64_t rows = args.q.dim(0), most = metadata.slot_mapping.dim(0) / (group.size() + 1);
  const int64_t heads = cache_.num_kv_heads, dim = cache_.k_dim;

  const Tensor mine = ctx.arena->take({2, most, heads, dim}, cache_.dtype);
  QkNormRopeStoreArgs own = args;
  own.cache = {mine.narrow(0, 0, 1), mine.narrow(0, 1, 1)};
  own.slot_mapping = metadata.slot_mapping.narrow(0, group.size() * most, rows);
  qk_norm_rope_store(ctx, own);

  const Tensor all = ctx.arena->take({group.size() * 2, most, heads, dim}, cache_.dtype);
  group.all_gather(ctx, mine, all);
  for (int rank = 0; rank < group.size(); ++rank)
    store_kv(ctx, all.select(0, 2 * rank), all.select(0, 2 * rank + 1),
             metadata.slot_mapping.narrow(0, rank * most, most), args.cache);
  paged_attention(ctx, args.q, args.cache, metadata, scale, out);
}
// <<< task 7.12

std::unique_ptr<Attention> make_prefill_context_attention(const OpContext&, int64_t,
                                                          const KvCacheSpec& cache) {
  LADDER_CHECK(cache.k_dim == cache.v_dim,
               "--prefill-context-parallel-size: keys of {} and values of {}, expected the same width",
               cache.k_dim, cache.v_dim);
  return std::make_unique<PrefillContextAttention>(cache);
}

}  // namespace ladder

#include "step7_parallel/context/decode_context_attention.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "step1_layers/attention/paged_attention.h"
#include "step1_layers/attention/qk_norm_rope_store.h"
#include "step1_layers/core/arena.h"
#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"
#include "step7_parallel/context/kv_interleave.h"
#include "step7_parallel/context/lse_merge.h"

namespace ladder {
namespace {

class DecodeContextAttention final : public Attention {
 public:
  DecodeContextAttention(int ranks, int64_t run, const KvCacheSpec& cache)
      : ranks_(ranks), run_(run), cache_(cache) {}

  KvCacheSpec kv_cache_spec() const override { return cache_; }
  void forward(const OpContext& ctx, const QkNormRopeStoreArgs& args, const AttentionMetadata& metadata,
               double scale, const Tensor& out) const override;

 private:
  int ranks_;
  int64_t run_;
  KvCacheSpec cache_;
};

// One call of one rank: its place, and what goes to and comes from the ranks of its group.
struct GroupCall {
  Communicator& group;
  int ranks, first;  // of the group's ranks those of [first, first + ranks)

  int mine() const { return group.rank() - first; }

  // Parts [ranks, rows, ...] by rank: part i of `sent` to rank i, its part for this one into part i of `received`.
  void exchange(const OpContext& ctx, const Tensor& sent, const Tensor& received) const {
    std::vector<int64_t> counts(static_cast<size_t>(group.size()));
    std::fill_n(counts.begin() + first, ranks, 1);
    group.all_to_all(ctx, sent, counts, received, counts);
  }
};

// A batch in which every row is a sequence of its own, as the local keys that it sees do not end where its neighbour's do.
struct LocalBatch {
  AttentionMetadata metadata;
  std::vector<bool> sees_nothing;  // by row; it is given one key all the same
};

LocalBatch local_batch(const KvInterleave& kv, const AttentionMetadata& metadata, int rank) {
  LocalBatch batch;
  std::vector<int32_t> starts{0}, lengths, tables;
  const int64_t page = kv.block / kv.ranks,
                columns = std::max<int64_t>((metadata.max_seq_len - 1) / kv.block + 1, 1);
  const int32_t* query_start_loc = metadata.query_start_loc.data<int32_t>();
  for (int64_t seq = 0; seq < metadata.num_seqs; ++seq) {
    const int64_t rows = query_start_loc[seq + 1] - query_start_loc[seq];
    const int32_t* table = metadata.block_tables.data<int32_t>() + seq * metadata.block_tables.stride(0);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t seen = metadata.seq_lens.data<int32_t>()[seq] - rows + row + 1;
      const int64_t here = local_kv_length(kv, seen, rank);
      batch.sees_nothing.push_back(here == 0);
      lengths.push_back(static_cast<int32_t>(std::max<int64_t>(here, 1)));
      starts.push_back(static_cast<int32_t>(lengths.size()));
      const int64_t pages = (lengths.back() - 1) / page + 1;
      tables.insert(tables.end(), table, table + pages);
      tables.resize(lengths.size() * static_cast<size_t>(columns));
    }
  }
  const auto num_rows = std::ssize(lengths);
  batch.metadata = metadata;
  batch.metadata.query_start_loc = Tensor::from<int32_t>(starts, {num_rows + 1});
  batch.metadata.seq_lens = Tensor::from<int32_t>(lengths, {num_rows});
  batch.metadata.block_tables = Tensor::from<int32_t>(tables, {num_rows, columns});
  batch.metadata.num_seqs = num_rows;
  batch.metadata.max_query_len = 1;
  return batch;
}

// Values that lie together: `count` runs from `from`, `from_stride` apart, to `to`, `to_stride` apart.
void copy_runs(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t run,
               int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(to + i * to_stride, from + i * from_stride, static_cast<size_t>(run) * sizeof(float));
}

}  // namespace

// >>> task 7.11: store, gather the queries, attend here, bring back and merge
void DecodeContextAttention::forward(const OpContext& ctx, const QkNormRopeStoreArgs& args,
                                     const AttentionMetadata& metadata, double scale,
                                     const Tensor& out) const {
  Communicator& tp = tp_group(ctx);
  const GroupCall call{tp, ranks_, tp.rank() / ranks_ * ranks_};
  const KvInterleave kv{ranks_, run_, args.cache.block_size() * ranks_};

  QkNormRopeStoreArgs mine = args;
  mine.slot_mapping = args.slot_mapping.clone();
  int64_t* slots = mine.slot_mapping.data<int64_t>();
  for (int64_t i = 0; i < mine.slot_mapping.numel(); ++i) slots[i] = local_kv_slot(kv, slots[i], call.mine());
  qk_norm_rope_store(ctx, mine);

  const ArenaScope scope(*ctx.arena);
  const int64_t rows = metadata.num_tokens, heads = args.q.dim(1), dim = args.q.dim(2), width = heads * dim;
  const Tensor sent = ctx.arena->take({ranks_, rows, heads, dim}, DType::f32);
  const Tensor received = ctx.arena->take({ranks_, rows, heads, dim}, DType::f32);
  const Tensor queries = ctx.arena->take({rows, ranks_ * heads, dim}, DType::f32);
  for (int64_t part = 0; part < ranks_; ++part)
    copy_runs(args.q.data<float>(), args.q.stride(0), sent.data<float>() + part * rows * width, width, width,
              rows);
  call.exchange(ctx, sent, received);
  for (int64_t part = 0; part < ranks_; ++part)
    copy_runs(received.data<float>() + part * rows * width, width, queries.data<float>() + part * width,
              ranks_ * width, width, rows);

  const LocalBatch batch = local_batch(kv, metadata, call.mine());
  const Tensor partial = ctx.arena->take(queries.shape(), DType::f32);
  const Tensor lse = ctx.arena->take({rows, ranks_ * heads}, DType::f32);
  paged_attention(ctx, queries, args.cache, batch.metadata, scale, partial, lse);
  for (int64_t row = 0; row < rows; ++row)
    if (batch.sees_nothing[static_cast<size_t>(row)])
      std::fill_n(lse.data<float>() + row * ranks_ * heads, ranks_ * heads,
                  -std::numeric_limits<float>::infinity());

  const Tensor lse_sent = ctx.arena->take({ranks_, rows, heads}, DType::f32);
  const Tensor lse_received = ctx.arena->take({ranks_, rows, heads}, DType::f32);
  for (int64_t part = 0; part < ranks_; ++part) {
    copy_runs(partial.data<float>() + part * width, ranks_ * width, sent.data<float>() + part * rows * width,
              width, width, rows);
    copy_runs(lse.data<float>() + part * heads, ranks_ * heads, lse_sent.data<float>() + part * rows * heads,
              heads, heads, rows);
  }
  call.exchange(ctx, sent, received);
  call.exchange(ctx, lse_sent, lse_received);
  out.rows(rows).copy_from(received.select(0, 0));
  for (int64_t part = 1; part < ranks_; ++part)
    merge_by_lse(out.rows(rows), lse_received.select(0, 0), received.select(0, part),
                 lse_received.select(0, part));
}
// <<< task 7.11

std::function<std::unique_ptr<Attention>(const OpContext& ctx, int64_t layer, const KvCacheSpec& cache)>
decode_context_attention(int ranks, int64_t run) {
  if (ranks == 1) return {};
  return [ranks, run](const OpContext& ctx, int64_t, const KvCacheSpec& cache) -> std::unique_ptr<Attention> {
    LADDER_CHECK(
        ctx.device.is_cpu() && cache.dtype == DType::f32,
        "--decode-context-parallel-size {} is there for --device cpu and --dtype f32, this is {} in {}",
        ranks, device_name(ctx.device), dtype_name(cache.dtype));
    LADDER_CHECK(
        cache.num_kv_heads == 1 && tp_group(ctx).size() % ranks == 0,
        "--decode-context-parallel-size {} with {} KV heads on each of {} ranks: expected one, and a divisor of "
        "the ranks",
        ranks, cache.num_kv_heads, tp_group(ctx).size());
    return std::make_unique<DecodeContextAttention>(ranks, run, cache);
  };
}

}  // namespace ladder

#include "tests/step7_parallel/growing_sequences.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/error.h"
#include "step1_layers/distributed/local_group.h"
#include "step1_layers/rotary/rope.h"
#include "step7_parallel/context/decode_context_attention.h"

namespace ladder::testing {
namespace {

Tensor rotary_table() {
  RopeConfig config;
  config.rotary_dim = 8;
  return make_rope_table(config, 256);
}

}  // namespace

GrowingSequences::GrowingSequences(Random& random, int64_t all_heads, int64_t all_kv_heads)
    : heads(all_heads), kv_heads(all_kv_heads), rope(rotary_table()) {
  std::vector<int32_t> pages(kPages);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), random.engine());
  const int64_t num_seqs = random.integer(1, 4);
  for (int64_t seq = 0; seq < num_seqs; ++seq)
    tables.emplace_back(pages.begin() + seq * 10, pages.begin() + (seq + 1) * 10);
  for (int step = 0; step < 4; ++step) {
    std::vector<int64_t>& rows = steps.emplace_back();
    for (int64_t seq = 0; seq < num_seqs; ++seq)
      rows.push_back(step == 1 ? 1 : random.integer(1, step == 0 ? 30 : 14));
    const int64_t all = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    q.push_back(random.normal({all, heads, kDim}, DType::f32));
    k.push_back(random.normal({all, kv_heads, kDim}, DType::f32));
    v.push_back(random.normal({all, kv_heads, kDim}, DType::f32));
  }
}

std::vector<Tensor> GrowingSequences::run(OpContext ctx, const Attention& attention, int64_t head,
                                          int64_t count, int64_t kv, int64_t kv_count, int shares) const {
  Arena arena;
  ctx.arena = &arena;
  const KvCacheView cache{poisoned({kPages, kBlock / shares, kv_count, kDim}, DType::f32),
                          poisoned({kPages, kBlock / shares, kv_count, kDim}, DType::f32)};
  std::vector<int64_t> lengths(tables.size());
  std::vector<Tensor> outs;
  for (size_t step = 0; step < steps.size(); ++step) {
    std::vector<int32_t> starts{0}, seq_lens, positions, all_tables;
    std::vector<int64_t> slots;
    AttentionMetadata metadata;
    for (size_t seq = 0; seq < tables.size(); ++seq) {
      for (int64_t row = 0; row < steps[step][seq]; ++row) {
        const int64_t p = lengths[seq]++;
        positions.push_back(static_cast<int32_t>(p));
        slots.push_back(tables[seq][static_cast<size_t>(p / kBlock)] * kBlock + p % kBlock);
      }
      starts.push_back(static_cast<int32_t>(positions.size()));
      seq_lens.push_back(static_cast<int32_t>(lengths[seq]));
      all_tables.insert(all_tables.end(), tables[seq].begin(), tables[seq].end());
      metadata.max_query_len = std::max(metadata.max_query_len, steps[step][seq]);
      metadata.max_seq_len = std::max(metadata.max_seq_len, lengths[seq]);
    }
    positions.push_back(0);  // a row of padding
    slots.push_back(-1);
    const auto num_seqs = std::ssize(tables), rows = std::ssize(positions);
    metadata.query_start_loc = Tensor::from<int32_t>(starts, {num_seqs + 1});
    metadata.seq_lens = Tensor::from<int32_t>(seq_lens, {num_seqs});
    metadata.block_tables = Tensor::from<int32_t>(all_tables, {num_seqs, 10});
    metadata.slot_mapping = Tensor::from<int64_t>(slots, {rows});
    metadata.num_seqs = num_seqs;
    metadata.num_tokens = rows - 1;
    auto part = [&](const Tensor& all, int64_t first, int64_t some) {
      const Tensor mine = Tensor::zeros({rows, some, kDim}, DType::f32);
      mine.rows(rows - 1).copy_from(all.narrow(1, first, some));
      return mine;
    };
    QkNormRopeStoreArgs args;
    args.q = part(q[step], head, count);
    args.k = part(k[step], kv, kv_count);
    args.v = part(v[step], kv, kv_count);
    args.positions = Tensor::from<int32_t>(positions, {rows});
    args.table = rope;
    args.slot_mapping = metadata.slot_mapping;
    args.cache = cache;
    const Tensor out = poisoned({rows, count, kDim}, DType::f32);
    attention.forward(ctx, args, metadata, 0.3, out);
    outs.push_back(out.rows(rows - 1));
  }
  return outs;
}
KvCacheSpec kv_cache_of(int64_t kv_heads) {
  KvCacheSpec spec;
  spec.num_kv_heads = kv_heads;
  spec.k_dim = spec.v_dim = GrowingSequences::kDim;
  return spec;
}

std::string difference_from_one_rank(const GrowingSequences& sequences, int tp, int shares, int64_t run) {
  const auto whole = make_attention({}, {}, 0, kv_cache_of(sequences.kv_heads));
  const auto expected = sequences.run({}, *whole, 0, sequences.heads, 0, sequences.kv_heads, 1);
  try {
    run_ranks(
        tp,
        [&](int rank, const ParallelContext& parallel) {
          OpContext ctx;
          ctx.parallel = &parallel;
          const auto attention = decode_context_attention(shares, run)(ctx, 0, kv_cache_of(1));
          const int64_t count = sequences.heads / tp, head = rank * count;
          const auto outs =
              sequences.run(ctx, *attention, head, count, rank * sequences.kv_heads / tp, 1, shares);
          for (size_t step = 0; step < outs.size(); ++step) {
            const Tensor of_rank = expected[step].narrow(1, head, count).clone();
            const auto close = close_to(outs[step], to_double(of_rank));
            LADDER_CHECK(close, "step {}, rank {} of {}, {} share keys in runs of {}: {}", step, rank, tp,
                         shares, run, close.message());
          }
        },
        std::chrono::seconds(60));
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

}  // namespace ladder::testing

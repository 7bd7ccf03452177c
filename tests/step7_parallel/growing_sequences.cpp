#include "tests/step7_parallel/growing_sequences.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/device_graph.h"
#include "step1_layers/core/error.h"
#include "step1_layers/distributed/local_group.h"
#include "step1_layers/rotary/rope.h"
#include "step7_parallel/context/decode_context_attention.h"

namespace ladder::testing {
namespace {

constexpr int64_t kPagesOfOne = 10;  // of a sequence

Tensor rotary_table(int64_t dim, int64_t length) {
  RopeConfig config;
  config.rotary_dim = dim;
  return make_rope_table(config, length);
}

}  // namespace

GrowingSequences::GrowingSequences(Random& random, const GrowingSizes& of)
    : sizes(of), rope(rotary_table(of.dim, kPagesOfOne * of.block)) {
  std::vector<int32_t> pages(kPages);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), random.engine());
  const int64_t num_seqs = random.integer(1, kPages / kPagesOfOne);
  for (int64_t seq = 0; seq < num_seqs; ++seq)
    tables.emplace_back(pages.begin() + seq * kPagesOfOne, pages.begin() + (seq + 1) * kPagesOfOne);
  for (int step = 0; step < 6; ++step) {
    std::vector<int64_t>& rows = steps.emplace_back();
    for (int64_t seq = 0; seq < num_seqs; ++seq)
      rows.push_back(step % 2 == 1 ? 1 : random.integer(1, (step == 0 ? 2 : 1) * of.most_rows));
    const int64_t all = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    q.push_back(random.normal({all, of.heads, of.dim}, of.dtype));
    k.push_back(random.normal({all, of.kv_heads, of.dim}, of.dtype));
    v.push_back(random.normal({all, of.kv_heads, of.dim}, of.dtype));
    if (of.dtype != DType::f32) take_magnitudes(v.back());  // a small rest of large ones is all rounding
  }
}

std::vector<Tensor> GrowingSequences::run(OpContext ctx, const Attention& attention, int64_t head,
                                          int64_t count, int64_t kv, int64_t kv_count, int shares,
                                          const std::function<void()>& meet) const {
  Arena arena(ctx.device);
  ctx.arena = &arena;
  const DType dtype = attention.kv_cache_spec().dtype;
  const Device device = ctx.device;
  const Shape cache_shape{kPages, sizes.block / shares, kv_count, sizes.dim};
  const KvCacheView cache{poisoned(cache_shape, dtype).to(device), poisoned(cache_shape, dtype).to(device)};
  const Tensor table = rope.to(device);
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
        slots.push_back(tables[seq][static_cast<size_t>(p / sizes.block)] * sizes.block + p % sizes.block);
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
    metadata.query_start_loc = Tensor::from<int32_t>(starts, {num_seqs + 1}).to(device);
    metadata.seq_lens = Tensor::from<int32_t>(seq_lens, {num_seqs}).to(device);
    metadata.block_tables = Tensor::from<int32_t>(all_tables, {num_seqs, kPagesOfOne}).to(device);
    metadata.slot_mapping = Tensor::from<int64_t>(slots, {rows}).to(device);
    metadata.num_seqs = num_seqs;
    metadata.num_tokens = rows - 1;
    auto part = [&](const Tensor& all, int64_t first, int64_t some) {
      const Tensor mine = Tensor::zeros({rows, some, sizes.dim}, all.dtype());
      mine.rows(rows - 1).copy_from(all.narrow(1, first, some));
      return mine.to(dtype);
    };
    const Tensor my_q = part(q[step], head, count), my_k = part(k[step], kv, kv_count),
                 my_v = part(v[step], kv, kv_count), nothing = poisoned({rows, count, sizes.dim}, dtype);
    QkNormRopeStoreArgs args;
    args.q = my_q.to(device), args.k = my_k.to(device), args.v = my_v.to(device);
    args.positions = Tensor::from<int32_t>(positions, {rows}).to(device);
    args.table = table;
    args.slot_mapping = metadata.slot_mapping;
    args.cache = cache;
    const Tensor out = nothing.to(device);
    const auto forward = [&] { attention.forward(ctx, args, metadata, 0.3, out); };
    forward();
    if (!device.is_cpu()) {
      device_synchronize(device, ctx.stream);
      meet();
      DeviceGraph graph;
      graph.capture(ctx, forward);
      for (int replay = 0; replay < 3; ++replay) {
        args.q.copy_from(my_q), args.k.copy_from(my_k), args.v.copy_from(my_v), out.copy_from(nothing);
        graph.replay(ctx);
        device_synchronize(device, ctx.stream);
      }
      meet();
    }
    outs.push_back(out.to(Device{}).rows(rows - 1));
  }
  return outs;
}

KvCacheSpec kv_cache_of(int64_t kv_heads, const GrowingSizes& sizes) {
  KvCacheSpec spec;
  spec.dtype = sizes.dtype;
  spec.num_kv_heads = kv_heads;
  spec.k_dim = spec.v_dim = sizes.dim;
  return spec;
}

std::vector<Tensor> results_of_one_rank(const GrowingSequences& sequences) {
  GrowingSizes exact = sequences.sizes;
  exact.dtype = DType::f32;
  const auto whole = make_attention({}, {}, 0, kv_cache_of(exact.kv_heads, exact));
  return sequences.run({}, *whole, 0, exact.heads, 0, exact.kv_heads, 1);
}

std::string difference_of_rank(const GrowingSequences& sequences, const std::vector<Tensor>& expected,
                               const OpContext& ctx, int rank, int tp, int shares, int64_t run,
                               const std::function<void()>& meet) {
  const GrowingSizes& sizes = sequences.sizes;
  const auto attention = decode_context_attention(shares, run)(ctx, 0, kv_cache_of(1, sizes));
  const int64_t count = sizes.heads / tp, head = rank * count;
  const auto outs = sequences.run(ctx, *attention, head, count, rank * sizes.kv_heads / tp, 1, shares, meet);
  // 16 bits round rotated queries and keys, each rank's results, and what they are merged to.
  const double bound = (sizes.dtype == DType::f32 ? 1 : 3) * row_bound(sizes.dtype);
  for (size_t step = 0; step < outs.size(); ++step) {
    const Tensor of_rank = expected[step].narrow(1, head, count).clone();
    if (const auto close = close_to(to_double(outs[step]), to_double(of_rank), sizes.dim, bound); !close)
      return fmt::format("step {}, rank {} of {}, {} share keys in runs of {}, {}: {}", step, rank, tp,
                         shares, run, dtype_name(sizes.dtype), close.message());
  }
  return {};
}

std::string difference_from_one_rank(const GrowingSequences& sequences, int tp, int shares, int64_t run) {
  const auto expected = results_of_one_rank(sequences);
  try {
    run_ranks(
        tp,
        [&](int rank, const ParallelContext& parallel) {
          OpContext ctx;
          ctx.parallel = &parallel;
          const std::string difference = difference_of_rank(sequences, expected, ctx, rank, tp, shares, run);
          LADDER_CHECK(difference.empty(), "{}", difference);
        },
        std::chrono::seconds(60));
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

}  // namespace ladder::testing

// Attention of one layer for one sequence that decodes, on two ranks that are threads and have the same KV head: each with all
// keys (shared:1), or with half of them (shared:2). f32, 4 query heads of 64 on each rank. The time is rank 0's; keys is what
// a rank reads, sent_KiB what it sends.
#include <benchmark/benchmark.h>

#include <chrono>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "step1_layers/core/arena.h"
#include "step1_layers/distributed/counting_communicator.h"
#include "step1_layers/rotary/rope.h"
#include "step7_parallel/communicators/kinds.h"
#include "step7_parallel/context/decode_context_attention.h"

namespace ladder {
namespace {

constexpr int64_t kHeads = 4, kDim = 64, kBlock = 16;
constexpr int kRanks = 2, kCalls = 20;

struct Measured {
  double seconds = 0;
  int64_t sent_bytes = 0;
};

Measured measure(int shared, int64_t length) {
  Measured measured;
  RopeConfig rope;
  rope.rotary_dim = kDim;
  const Tensor table = make_rope_table(rope, length);
  const auto errors =
      communicator_kind("threads").run(kRanks, std::chrono::seconds(60), [&](int rank, Communicator& group) {
        Arena arena;
        CountingCommunicator counting(group);
        ParallelContext parallel;
        parallel.tp = &counting;
        OpContext ctx;
        ctx.arena = &arena;
        ctx.parallel = &parallel;
        KvCacheSpec spec;
        spec.num_kv_heads = 1;
        spec.k_dim = spec.v_dim = kDim;
        const auto attention =
            make_attention({.attention = decode_context_attention(shared, 1)}, ctx, 0, spec);
        const int64_t pages = (length - 1) / kBlock + 1;
        std::vector<int32_t> pages_in_order(static_cast<size_t>(pages));
        std::iota(pages_in_order.begin(), pages_in_order.end(), 0);
        AttentionMetadata metadata;
        metadata.query_start_loc = Tensor::from<int32_t>(std::vector<int32_t>{0, 1}, {2});
        metadata.seq_lens = Tensor::from<int32_t>(std::vector<int32_t>{static_cast<int32_t>(length)}, {1});
        metadata.block_tables = Tensor::from<int32_t>(pages_in_order, {1, pages});
        metadata.slot_mapping = Tensor::from<int64_t>(std::vector<int64_t>{length - 1}, {1});
        metadata.num_seqs = metadata.num_tokens = metadata.max_query_len = 1;
        metadata.max_seq_len = length;
        QkNormRopeStoreArgs args;
        args.q = Tensor::zeros({1, kHeads, kDim}, DType::f32);
        args.k = Tensor::zeros({1, 1, kDim}, DType::f32);
        args.v = Tensor::zeros({1, 1, kDim}, DType::f32);
        args.positions = Tensor::from<int32_t>(std::vector<int32_t>{static_cast<int32_t>(length - 1)}, {1});
        args.table = table;
        args.slot_mapping = metadata.slot_mapping;
        args.cache = {Tensor::zeros({pages, kBlock / shared, 1, kDim}, DType::f32),
                      Tensor::zeros({pages, kBlock / shared, 1, kDim}, DType::f32)};
        const Tensor out = Tensor::empty(args.q.shape(), DType::f32);
        attention->forward(ctx, args, metadata, 0.125, out);
        group.barrier(ctx);
        const int64_t before = counting.sent_bytes();
        const auto begin = std::chrono::steady_clock::now();
        for (int call = 0; call < kCalls; ++call) attention->forward(ctx, args, metadata, 0.125, out);
        group.barrier(ctx);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        if (rank == 0) measured = {took.count() / kCalls, (counting.sent_bytes() - before) / kCalls};
      });
  for (const std::string& error : errors)
    if (!error.empty()) throw std::runtime_error(error);
  return measured;
}

void BM_DecodeContext(benchmark::State& state) {
  const auto shared = static_cast<int>(state.range(0));
  const int64_t length = state.range(1);
  for (auto _ : state) {
    const Measured measured = measure(shared, length);
    state.SetIterationTime(measured.seconds);
    state.counters["keys"] = static_cast<double>(length / shared);
    state.counters["sent_KiB"] = static_cast<double>(measured.sent_bytes) / 1024;
  }
}

BENCHMARK(BM_DecodeContext)
    ->ArgNames({"shared", "tokens"})
    ->ArgsProduct({{1, 2}, {256, 4096, 32768, 131072}})
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ladder

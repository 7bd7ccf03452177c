// Causal attention of one prompt over ranks that are threads with a core each, by every method, f32, 8 heads and 4 KV heads
// of 64. The time is rank 0's; sent_KiB is what a rank sends, computed_% its share of all pairs of query and key, and
// of_ideal how much of the speed of so many ranks it has, beside one rank in the same run.
#include <benchmark/benchmark.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "step1_layers/core/arena.h"
#include "step1_layers/distributed/counting_communicator.h"
#include "step1_layers/distributed/local_group.h"
#include "step7_parallel/communicators/kinds.h"
#include "step7_parallel/context/context_methods.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;

struct Measured {
  double seconds = 0;
  int64_t sent_bytes = 0;
};

Tensor wave(const Shape& shape) {  // attention takes as long for any numbers
  const Tensor tensor = Tensor::empty(shape, DType::f32);
  for (int64_t i = 0; i < tensor.numel(); ++i) tensor.data<float>()[i] = static_cast<float>(i % 17 - 8) / 8;
  return tensor;
}

Measured measure(const Variant<ContextAttentionArgs>& method, int ranks, int64_t length) {
  constexpr int64_t kHeads = 8, kKvHeads = 4, kDim = 64;
  const int calls = length >= 4096 ? 1 : 8, width = ranks % 4 == 0 ? ranks / 2 : 1;
  std::vector<std::unique_ptr<LocalGroup>> inner, outer;
  for (int i = 0; i < ranks / width; ++i) inner.push_back(std::make_unique<LocalGroup>(width));
  for (int i = 0; i < width; ++i) outer.push_back(std::make_unique<LocalGroup>(ranks / width));
  Measured measured;
  const auto errors = communicator_kind("threads").run(ranks, 120s, [&](int rank, Communicator& group) {
    Arena arena;
    OpContext ctx;
    ctx.arena = &arena;
    CountingCommunicator whole(group), across(inner[static_cast<size_t>(rank / width)]->rank(rank % width)),
        along(outer[static_cast<size_t>(rank % width)]->rank(rank / width));
    ContextAttentionArgs args;
    args.group = &whole;
    args.inner = &across;
    args.outer = &along;
    args.prompts = {{.length = length}};
    const int64_t rows = context_rows(args.prompts, ranks, rank);
    args.q = wave({rows, kHeads, kDim});
    args.k = wave({rows, kKvHeads, kDim});
    args.v = wave({rows, kKvHeads, kDim});
    args.scale = 0.125;
    args.out = Tensor::empty(args.q.shape(), DType::f32);
    group.barrier(ctx);
    const auto begin = std::chrono::steady_clock::now();
    for (int call = 0; call < calls; ++call) method.run(ctx, args);
    group.barrier(ctx);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (rank == 0)
      measured = {took.count() / calls,
                  (whole.sent_bytes() + across.sent_bytes() + along.sent_bytes()) / calls};
  });
  for (const std::string& error : errors)
    if (!error.empty()) throw std::runtime_error(error);
  return measured;
}

void BM_ContextAttention(benchmark::State& state, const Variant<ContextAttentionArgs>& method) {
  const auto ranks = static_cast<int>(state.range(0));
  const int64_t length = state.range(1);
  const Variant<ContextAttentionArgs>& alone = context_attention_variants().front();
  for (auto _ : state) {
    const double one_rank = measure(alone, 1, length).seconds;
    const Measured measured = measure(method, ranks, length);
    state.SetIterationTime(measured.seconds);
    state.counters["sent_KiB"] = static_cast<double>(measured.sent_bytes) / 1024;
    state.counters["of_ideal"] = one_rank / (measured.seconds * ranks);
  }
  const auto all = static_cast<double>(length * (length + 1) / 2);
  state.counters["computed_%"] =
      100 * static_cast<double>(causal_pairs(zigzag_share(length, ranks, 0))) / all;
}

const bool kRegistered = [] {
  for (const auto& method : context_attention_variants()) {
    if (method.device != DeviceType::cpu) continue;
    for (const int64_t ranks : {2, 4})
      for (const int64_t length : {256, 1024, 4096, 8192}) {
        if (method.name == "ulysses_ring" && ranks < 4) continue;  // one dimension is left
        benchmark::RegisterBenchmark(
            ("ContextAttention/" + std::string(method.name)).c_str(),
            [&method](benchmark::State& state) { BM_ContextAttention(state, method); })
            ->Args({ranks, length})
            ->ArgNames({"ranks", "tokens"})
            ->Iterations(1)
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond);
      }
  }
  return true;
}();

}  // namespace
}  // namespace ladder

// Causal attention of one prompt over GPUs, by every method, bf16, the shape of an 8B model: 32 heads and 8 KV heads of 128,
// one layer. The time is rank 0's, by events, the median of calls that are given to the GPUs one after another; sent_MiB is
// what a rank sends, and of_ideal how much of the speed of so many GPUs it has, beside one GPU in the same run.
// "ring_in_turn": the ring without its second stream.
#ifdef LADDER_HAS_CUDA
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "step1_layers/core/device_graph.h"
#include "step1_layers/distributed/counting_communicator.h"
#include "step1_layers/distributed/local_group.h"
#include "step7_parallel/communicators/gpu/gpu_ranks.h"
#include "step7_parallel/context/beside.h"
#include "step7_parallel/context/context_methods.h"
#include "step7_parallel/context/partial_attention.h"
#include "step7_parallel/context/ring_attention.h"

namespace ladder {
namespace {

constexpr int64_t kHeads = 32, kKvHeads = 8, kDim = 128;
constexpr int64_t kTokens[] = {8192, 32768, 65536, 131072};
constexpr double kScale = 0.08838834764831845;  // 1 / sqrt(128)

// Of two ranks "ulysses_ring" is "ulysses": one dimension is left.
bool is_measured(std::string_view method, int64_t ranks) {
  return method != "ulysses_ring" || ranks >= 4;
}

// Random numbers on the GPU; from row kRepeat on they come again.
Tensor random_rows(const GpuRank& rank, int64_t rows, int64_t heads) {
  constexpr int64_t kRepeat = 2048;
  std::mt19937 random(static_cast<unsigned>(heads));
  std::normal_distribution<float> normal;
  const Tensor some = Tensor::empty({std::min(rows, kRepeat), heads, kDim}, DType::f32);
  for (int64_t i = 0; i < some.numel(); ++i) some.data<float>()[i] = normal(random);
  const Tensor on_gpu = some.to(DType::bf16).to(rank.ctx.device);
  const Tensor tensor = Tensor::empty({rows, heads, kDim}, DType::bf16, rank.ctx.device);
  for (int64_t row = 0; row < rows; row += kRepeat) {
    const int64_t count = std::min(kRepeat, rows - row);
    tensor.narrow(0, row, count).copy_from(on_gpu.rows(count));
  }
  return tensor;
}

// Seconds of a call that all ranks make together.
double call_seconds(const GpuRank& rank, const std::function<void()>& call) {
  constexpr int kCalls = 7;
  call();
  device_synchronize(rank.ctx.device, rank.ctx.stream);
  rank.host.barrier({});
  DeviceEvent events[kCalls + 1];
  events[0].record(rank.ctx);
  for (int i = 0; i < kCalls; ++i) {
    call();
    events[i + 1].record(rank.ctx);
  }
  events[kCalls].wait();
  rank.host.barrier({});
  std::vector<double> times;
  for (int i = 0; i < kCalls; ++i) times.push_back(events[i + 1].seconds_since(events[i]));
  std::nth_element(times.begin(), times.begin() + kCalls / 2, times.end());
  return times[kCalls / 2];
}

struct Measured {
  double seconds = 0, alone = 0;
  int64_t sent_bytes = 0;
};
struct AllMeasured {
  std::string error;
  std::map<std::string, Measured> methods;  // "ring/65536"
};

void measure_length(const GpuRank& rank, Communicator& inner, Communicator& outer, SideStream& side,
                    int64_t length, std::map<std::string, Measured>& methods) {
  const bool notes = rank.group.rank() == 0;
  double alone = 0;
  {
    const Tensor q = random_rows(rank, length, kHeads), k = random_rows(rank, length, kKvHeads),
                 v = random_rows(rank, length, kKvHeads),
                 out = Tensor::empty(q.shape(), DType::bf16, rank.ctx.device);
    alone = call_seconds(rank, [&] { causal_attention_of_last(rank.ctx, q, k, v, kScale, out); });
  }
  CountingCommunicator whole(rank.group), across(inner), along(outer);
  ContextAttentionArgs args;
  args.prompts = {{.length = length}};
  const int64_t rows = context_rows(args.prompts, rank.group.size(), rank.group.rank());
  args.group = &whole;
  args.inner = &across;
  args.outer = &along;
  args.q = random_rows(rank, rows, kHeads);
  args.k = random_rows(rank, rows, kKvHeads);
  args.v = random_rows(rank, rows, kKvHeads);
  args.scale = kScale;
  args.out = Tensor::empty(args.q.shape(), DType::bf16, rank.ctx.device);
  const auto measure = [&](std::string_view name, SideStream* stream, auto run) {
    args.side = stream;
    const auto sent = [&] { return whole.sent_bytes() + across.sent_bytes() + along.sent_bytes(); };
    const int64_t before = sent();
    rank.host.barrier({});  // nobody frees memory, which may wait for what waits for another rank
    run(rank.ctx, args);
    const int64_t sent_bytes = sent() - before;
    const double seconds = call_seconds(rank, [&] { run(rank.ctx, args); });
    if (notes) methods[fmt::format("{}/{}", name, length)] = {seconds, alone, sent_bytes};
  };
  for (const auto& method : context_attention_variants())
    if (is_measured(method.name, rank.group.size()) && can_run(method, rank.ctx, args))
      measure(method.name, &side, method.run);
  measure("ring_in_turn", nullptr, ring_attention);
}

AllMeasured measure_all(int ranks) {
  AllMeasured all;
  all.error = gpu_ranks_obstacle(ranks);
  if (!all.error.empty()) return all;
  std::vector<std::unique_ptr<LocalGroup>> inner, outer;
  for (int i = 0; i < ranks / 2; ++i) inner.push_back(std::make_unique<LocalGroup>(2));
  for (int i = 0; i < 2; ++i) outer.push_back(std::make_unique<LocalGroup>(ranks / 2));
  const auto errors = run_gpu_ranks(ranks, std::chrono::seconds(300), [&](const GpuRank& rank) {
    const int me = rank.group.rank();
    GpuCommunicator across(rank.ctx, inner[static_cast<size_t>(me / 2)]->rank(me % 2)),
        along(rank.ctx, outer[static_cast<size_t>(me % 2)]->rank(me / 2));
    SideStream side(rank.ctx.device);
    warm_up_context_attention(rank.ctx, DType::bf16, kHeads, kKvHeads, kDim);
    rank.ctx.arena->reserve(int64_t{4} << 30);
    rank.host.barrier({});
    for (const int64_t length : kTokens) measure_length(rank, across, along, side, length, all.methods);
    rank.host.barrier({});
  });
  for (const std::string& error : errors)
    if (all.error.empty()) all.error = error;
  return all;
}

void report(benchmark::State& state, const std::string& name) {
  static std::map<int, AllMeasured> of_ranks;  // measured by the first of them: making a group takes seconds
  const auto ranks = static_cast<int>(state.range(0));
  if (!of_ranks.contains(ranks)) of_ranks[ranks] = measure_all(ranks);
  const AllMeasured& all = of_ranks[ranks];
  const auto found = all.methods.find(fmt::format("{}/{}", name, state.range(1)));
  if (!all.error.empty() || found == all.methods.end())
    return state.SkipWithError(all.error.empty() ? "this method cannot run here" : all.error.c_str());
  const Measured& measured = found->second;
  for (auto _ : state) state.SetIterationTime(measured.seconds);
  state.counters["one_gpu_ms"] = 1000 * measured.alone;
  state.counters["of_ideal"] = measured.alone / (measured.seconds * ranks);
  state.counters["sent_KiB"] = static_cast<double>(measured.sent_bytes) / 1024;
  // A pair of query and key: two products of kDim numbers for each head.
  state.counters["TFLOPS_of_a_GPU"] = static_cast<double>(state.range(1) * (state.range(1) + 1) / 2) * 4 *
                                      kDim * kHeads / measured.seconds / ranks / 1e12;
}

const bool kRegistered = [] {
  std::vector<std::string> names;
  for (const auto& method : context_attention_variants())
    if (method.device == DeviceType::cuda) names.emplace_back(method.name);
  names.emplace_back("ring_in_turn");
  for (const std::string& name : names)
    for (const int64_t ranks : {2, 4, 8})
      for (const int64_t tokens : kTokens) {
        if (!is_measured(name, ranks)) continue;
        benchmark::RegisterBenchmark(("GpuContextAttention/" + name).c_str(),
                                     [name](benchmark::State& state) { report(state, name); })
            ->Args({ranks, tokens})
            ->ArgNames({"ranks", "tokens"})
            ->Iterations(1)
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond);
      }
  return true;
}();

}  // namespace
}  // namespace ladder
#endif

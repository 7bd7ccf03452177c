// Attention of one layer for sequences that decode, one KV head of 128 in bf16, its store and all exchanges included, in a graph,
// over rotating caches (gpu_call_time.h):
//
//   one      a GPU with all query heads and all keys
//   tensor   each of N GPUs with 1/N of the heads and all keys
//   push     each with 1/N of the heads and of the keys (7.11), by our kernels
//   nccl     the same by messages of NCCL
//
// of_ideal: how far N GPUs are from N times as fast as one, in the same run; speedup: how many times they are.
#ifdef LADDER_HAS_CUDA
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "bench/step7_parallel/communicators/gpu_call_time.h"
#include "step1_layers/core/arena.h"
#include "step1_layers/rotary/rope.h"
#include "step7_parallel/context/decode_context_attention.h"

namespace ladder {
namespace {

constexpr int64_t kDim = 128, kSlots = 16;  // of a rank's block
constexpr int64_t kHeads[] = {8, 32}, kSequences[] = {1, 8}, kTokens[] = {8192, 32768, 131072};
constexpr const char* kForms[] = {"one", "tensor", "push", "nccl"};
constexpr int64_t kBytesOfSets = int64_t{256} << 20;  // more than any cache holds
constexpr int kCalls = 60;

std::string name_of(std::string_view form, int64_t heads, int64_t sequences, int64_t tokens) {
  return fmt::format("{}/{}/{}/{}", form, heads, sequences, tokens);
}

template <class T>
Tensor numbers(Device device, const Shape& shape, T first, T step) {
  const Tensor tensor = Tensor::empty(shape, dtype_of<T>);
  for (int64_t i = 0; i < tensor.numel(); ++i) tensor.data<T>()[i] = first + static_cast<T>(i) * step;
  return tensor.to(device);
}

// Seconds of a call; `shares` ranks share out the keys.
double measure(const GpuRank& rank, std::string_view form, int64_t all_heads, int64_t sequences,
               int64_t tokens) {
  const int size = rank.group.size(), shares = form == "push" || form == "nccl" ? size : 1;
  const int64_t heads = form == "one" ? all_heads : all_heads / size;
  ParallelContext parallel;
  parallel.tp = &rank.group;
  OpContext ctx = rank.ctx;
  ctx.parallel = &parallel;
  ctx.dependent_launch = ctx.device_arch >= 90;
  if (shares > 1) ctx.kernels["gather_heads"] = ctx.kernels["merge_heads"] = form;
  const Device device = ctx.device;
  KvCacheSpec spec;
  spec.dtype = DType::bf16;
  spec.num_kv_heads = 1;
  spec.k_dim = spec.v_dim = kDim;
  ModelMakers makers;
  makers.attention = decode_context_attention(shares, 1);
  const auto attention = make_attention(makers, ctx, 0, spec);
  const int64_t block = kSlots * shares, pages = tokens / block;
  AttentionMetadata metadata;
  metadata.query_start_loc = numbers<int32_t>(device, {sequences + 1}, 0, 1);
  metadata.seq_lens = numbers<int32_t>(device, {sequences}, static_cast<int32_t>(tokens), 0);
  metadata.block_tables = numbers<int32_t>(device, {sequences, pages}, 0, 1);
  metadata.slot_mapping = numbers<int64_t>(device, {sequences}, tokens - 1, tokens);
  metadata.num_seqs = metadata.num_tokens = sequences;
  metadata.max_query_len = 1;
  metadata.max_seq_len = tokens;
  RopeConfig rope;
  rope.rotary_dim = kDim;
  const Tensor table = make_rope_table(rope, tokens).to(device),
               positions = numbers<int32_t>(device, {sequences}, static_cast<int32_t>(tokens - 1), 0);
  const Shape cache_shape{sequences * pages, kSlots, 1, kDim};
  std::vector<std::pair<QkNormRopeStoreArgs, Tensor>> sets;
  const int64_t set_bytes = 2 * cache_shape.numel() * dtype_size(DType::bf16);
  for (int64_t i = std::max<int64_t>(kBytesOfSets / set_bytes, 2); i > 0; --i) {
    const auto zeros = [&](const Shape& shape) { return Tensor::zeros(shape, DType::bf16, device); };
    QkNormRopeStoreArgs args;
    args.q = zeros({sequences, heads, kDim}), args.k = zeros({sequences, 1, kDim}), args.v = args.k.clone();
    args.positions = positions;
    args.table = table;
    args.slot_mapping = metadata.slot_mapping;
    args.cache = {zeros(cache_shape), zeros(cache_shape)};
    sets.emplace_back(args, zeros(args.q.shape()));
  }
  device_synchronize(device, ctx.stream);
  return gpu_call_seconds(rank, kCalls, static_cast<int>(sets.size()), [&](int i) {
    const auto& [args, out] = sets[static_cast<size_t>(i)];
    attention->forward(ctx, args, metadata, 0.088, out);
  });
}

void measure_all(const GpuRank& rank, std::map<std::string, double>& seconds) {
  for (const int64_t heads : kHeads)
    for (const int64_t sequences : kSequences)
      for (const int64_t tokens : kTokens)
        for (const std::string_view form : kForms) {
          if ((form == "push" && rank.group.peer_memory() == nullptr) ||
              (form == "nccl" && rank.group.nccl_group() == nullptr))
            continue;
          const double took = measure(rank, form, heads, sequences, tokens);
          if (rank.group.rank() == 0) seconds[name_of(form, heads, sequences, tokens)] = took;
        }
}

const GpuSeconds& measured(int size) {
  static std::map<int, GpuSeconds> of_sizes;
  const auto [at, is_new] = of_sizes.try_emplace(size);
  if (is_new) at->second = measure_on_gpus(size, measure_all);
  return at->second;
}

void report(benchmark::State& state, const char* form) {
  const auto ranks = static_cast<int>(state.range(0));
  const GpuSeconds& all = measured(ranks);
  const auto of = [&](const char* name) {
    return all.seconds.find(name_of(name, state.range(1), state.range(2), state.range(3)));
  };
  const auto found = of(form), one = of("one");
  if (found == all.seconds.end())
    return state.SkipWithError(all.error.empty() ? "this form cannot run here" : all.error.c_str());
  for (auto _ : state) state.SetIterationTime(found->second);
  if (one == found) return;
  const double speedup = one->second / found->second;
  state.counters["speedup"] = speedup;
  state.counters["of_ideal"] = speedup / ranks;
}

const bool kRegistered = [] {
  for (const char* form : kForms)
    benchmark::RegisterBenchmark(fmt::format("BM_GpuDecodeContext_{}", form).c_str(),
                                 [form](benchmark::State& state) { report(state, form); })
        ->ArgNames({"ranks", "heads", "sequences", "tokens"})
        ->ArgsProduct({{2, 4, 8},
                       {std::begin(kHeads), std::end(kHeads)},
                       {std::begin(kSequences), std::end(kSequences)},
                       {std::begin(kTokens), std::end(kTokens)}})
        ->UseManualTime()
        ->Iterations(1)
        ->Unit(benchmark::kMicrosecond);
  return true;
}();

}  // namespace
}  // namespace ladder
#endif

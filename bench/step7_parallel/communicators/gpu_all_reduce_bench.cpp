// all_reduce between GPUs by every rung of its table, and all_reduce_add_norm, bf16, over rotating buffers, a call's time
// as gpu_call_time.h says, on rank 0. Making a group takes seconds, so the first benchmark measures all of them.
#ifdef LADDER_HAS_CUDA
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>

#include "bench/step7_parallel/communicators/gpu_call_time.h"
#include "step1_layers/core/error.h"

namespace ladder {
namespace {

constexpr int64_t kKiB = 1 << 10, kMiB = 1 << 20;
constexpr int64_t kBytes[] = {kKiB,      2 * kKiB,   4 * kKiB,   8 * kKiB,   16 * kKiB, 32 * kKiB,
                              64 * kKiB, 128 * kKiB, 256 * kKiB, 512 * kKiB, kMiB,      2 * kMiB,
                              4 * kMiB,  8 * kMiB,   16 * kMiB,  64 * kMiB,  256 * kMiB};
constexpr int64_t kRows[] = {1, 4, 8, 16, 32, 64, 128, 256};
constexpr int64_t kWidth = 4096;

double measure(const GpuRank& rank, int64_t bytes, int sets, const std::function<void(int)>& call) {
  const int calls = static_cast<int>(std::clamp<int64_t>((int64_t{2} << 30) / bytes, 20, 1000));
  return gpu_call_seconds(rank, calls, sets, call);
}

// Random and small: a sum in place at most doubles what is there with every call.
void fill(const GpuRank& rank, const Tensor& tensor) {
  std::mt19937 random(static_cast<unsigned>(rank.group.rank()));
  const Tensor some = Tensor::empty({std::min<int64_t>(tensor.numel(), 2 << 20)}, DType::bf16);
  for (int64_t i = 0; i < some.numel(); ++i) {
    const auto exponent = static_cast<uint16_t>(1 + random() % 8),
               others = static_cast<uint16_t>(random() & 0x807f);
    const auto bits = static_cast<uint16_t>(others | exponent << 7);
    std::memcpy(static_cast<char*>(some.raw()) + i * 2, &bits, sizeof bits);
  }
  const Tensor flat = tensor.view({tensor.numel()}), there = some.to(rank.ctx.device);
  for (int64_t at = 0; at < flat.numel(); at += some.numel()) {
    const int64_t count = std::min(some.numel(), flat.numel() - at);
    flat.narrow(0, at, count).copy_from(there.narrow(0, 0, count), rank.ctx.stream);
  }
  device_synchronize(rank.ctx.device, rank.ctx.stream);
}

int sets_of(int64_t bytes) {  // together past the L2 cache, where that is not hundreds
  return static_cast<int>(std::clamp<int64_t>(128 * kMiB / bytes, 2, 100));
}

void measure_all(const GpuRank& rank, std::map<std::string, double>& seconds) {
  const auto note = [&](const std::string& name, double value) {
    if (rank.group.rank() == 0) seconds[name] = value;
  };
  for (const int64_t bytes : kBytes) {
    const int sets = sets_of(bytes);
    const Tensor all = Tensor::zeros({sets, bytes / 2}, DType::bf16, rank.ctx.device);
    for (const auto& rung : peer_all_reduce_variants()) {
      const auto args = [&](int i) { return rank.group.peer_args(all.select(0, i)); };
      if (!can_run(rung, rank.ctx, args(0))) continue;
      fill(rank, all);
      note(fmt::format("{}/{}", rung.name, bytes),
           measure(rank, bytes, sets, [&](int i) { rung.run(rank.ctx, args(i)); }));
    }
  }
  for (const int64_t rows : kRows) {
    const int64_t bytes = rows * kWidth * 2;
    const int sets = sets_of(bytes);
    const auto make = [&](int64_t lines) {
      return Tensor::zeros({sets, lines, kWidth}, DType::bf16, rank.ctx.device);
    };
    const Tensor partial = make(rows), residual = make(rows), out = make(rows), weight = make(1);
    for (const Tensor& tensor : {partial, residual, weight}) fill(rank, tensor);
    const auto args = [&](int i) -> AllReduceNormArgs {
      return {partial.select(0, i), residual.select(0, i), weight.select(0, i).select(0, 0), 1e-6,
              out.select(0, i)};
    };
    note(fmt::format("bare/{}", rows),
         measure(rank, bytes, sets, [&](int i) { rank.group.all_reduce(rank.ctx, partial.select(0, i)); }));
    note(fmt::format("fused/{}", rows),
         measure(rank, bytes, sets, [&](int i) { rank.group.all_reduce_add_norm(rank.ctx, args(i)); }));
    note(fmt::format("operators/{}", rows), measure(rank, bytes, sets, [&](int i) {
           rank.group.Communicator::all_reduce_add_norm(rank.ctx, args(i));
         }));
  }
}

const GpuSeconds& measured(int size) {
  static std::map<int, GpuSeconds> of_sizes;
  const auto [at, is_new] = of_sizes.try_emplace(size);
  if (is_new) at->second = measure_on_gpus(size, measure_all);
  return at->second;
}

void report(benchmark::State& state, const std::string& name, int64_t bytes, const std::string& beside) {
  const GpuSeconds& all = measured(static_cast<int>(state.range(0)));
  const auto found = all.seconds.find(name), other = all.seconds.find(beside);
  if (found == all.seconds.end())
    return state.SkipWithError(all.error.empty() ? "this rung does not take this size" : all.error.c_str());
  for (auto _ : state) state.SetIterationTime(found->second);
  state.SetBytesProcessed(state.iterations() * bytes);
  if (other != all.seconds.end())
    state.counters[beside.starts_with("nccl") ? "of_nccl" : "of_bare"] = found->second / other->second;
}

const bool kRegistered = [] {
  const auto add = [](const std::string& name, const std::string& argument, int64_t value, int64_t bytes,
                      const std::string& key, const std::string& beside) {
    benchmark::RegisterBenchmark(name.c_str(),
                                 [=](benchmark::State& state) { report(state, key, bytes, beside); })
        ->ArgNames({"ranks", argument})
        ->ArgsProduct({{2, 4, 8}, {value}})
        ->UseManualTime()
        ->Iterations(1)
        ->Unit(benchmark::kMicrosecond);
  };
  for (const int64_t bytes : kBytes)
    for (const auto& rung : peer_all_reduce_variants())
      add(fmt::format("BM_GpuAllReduce_{}", rung.name), "bytes", bytes, bytes,
          fmt::format("{}/{}", rung.name, bytes), fmt::format("nccl/{}", bytes));
  for (const int64_t rows : kRows)
    for (const char* const form : {"bare", "fused", "operators"})
      add(fmt::format("BM_GpuAllReduceNorm_{}", form), "rows", rows, rows * kWidth * 2,
          fmt::format("{}/{}", form, rows), fmt::format("bare/{}", rows));
  return true;
}();

}  // namespace
}  // namespace ladder
#endif

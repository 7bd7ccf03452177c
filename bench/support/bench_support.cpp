#include "bench/support/bench_support.h"

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <map>
#include <string>
#include <utility>

#include "step1_layers/core/parallel.h"
#include "step1_layers/linear/matmul.h"

namespace ladder::bench {

namespace {

// The command line, as it can be typed again: without folders, and without where the results went.
std::string command_line() {
  std::ifstream file("/proc/self/cmdline");
  std::string command;
  for (std::string argument; std::getline(file, argument, '\0');) {
    if (argument.starts_with("--benchmark_out")) continue;
    if (command.empty()) argument = argument.substr(argument.rfind('/') + 1);
    command += (command.empty() ? "" : " ") + argument;
  }
  return command;
}

// Recorded with every JSON file of results.
const bool kContext = [] {
  benchmark::AddCustomContext("command", command_line());
  benchmark::AddCustomContext("cpu", cpu_name());
  benchmark::AddCustomContext("threads", std::to_string(num_threads()));
  return true;
}();

// Compiled for each width of registers; the loader picks the widest that the processor has.
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
uint64_t
sum_of(const uint64_t* data, int64_t count) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += data[i];
  return sum;
}

// Seconds of the fastest of `runs` calls.
template <class Fn>
double best_seconds(int runs, Fn&& fn) {
  double best = 1e30;
  for (int run = 0; run < runs; ++run) {
    const auto start = std::chrono::steady_clock::now();
    fn();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

double measure_read_bandwidth() {
  constexpr int64_t kBytes = int64_t{1} << 30;
  constexpr int64_t kWords = kBytes / 8;
  Tensor buffer = Tensor::empty({kWords}, DType::i64);
  const uint64_t* words = reinterpret_cast<const uint64_t*>(buffer.data<int64_t>());
  // Written before it is read: untouched pages are all the same page of zeros.
  parallel_for(kWords, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) buffer.data<int64_t>()[i] = i;
  });
  const double seconds = best_seconds(7, [&] {
    parallel_for(kWords, 1, [&](int64_t begin, int64_t end) {
      uint64_t sum = sum_of(words + begin, end - begin);
      benchmark::DoNotOptimize(sum);
    });
  });
  return static_cast<double>(kBytes) / seconds;
}

double measure_matmul_rate(DType dtype) {
  constexpr int64_t kM = 512, kN = 3072, kK = 1024;
  MatmulArgs args{random_tensor({kM, kK}, dtype), random_tensor({kN, kK}, dtype), Tensor(),
                  Tensor::empty({kM, kN}, dtype)};
  Arena arena;
  OpContext ctx;
  ctx.arena = &arena;
  const Variant<MatmulArgs>* library = nullptr;
  for (const auto& variant : matmul_variants())
    if (variant.name == "onednn" && can_run(variant, ctx, args)) library = &variant;
  if (library == nullptr) library = &select_variant("matmul", matmul_variants(), ctx, args);
  const double seconds = best_seconds(7, [&] { library->run(ctx, args); });
  return 2.0 * kM * kN * kK / seconds;
}

}  // namespace

double read_bandwidth() {
  static std::map<int, double> measured;
  auto [entry, is_new] = measured.try_emplace(num_threads(), 0.0);
  if (is_new) entry->second = measure_read_bandwidth();
  return entry->second;
}

double matmul_rate(DType dtype) {
  static std::map<std::pair<DType, int>, double> measured;
  auto [entry, is_new] = measured.try_emplace({dtype, num_threads()}, 0.0);
  if (is_new) entry->second = measure_matmul_rate(dtype);
  return entry->second;
}

OperandSlot& operand_slot() {
  static OperandSlot slot;
  return slot;
}

int64_t rotation_bytes() {
  const int64_t cache = std::max<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE), 0);
  return std::max<int64_t>(2 * cache, int64_t{64} << 20);
}

Tensor random_tensor(const Shape& shape, DType dtype, uint64_t seed) {
  Tensor tensor = Tensor::empty(shape, dtype);
  with_float_type(dtype, "random_tensor", [&](auto tag) {
    using T = decltype(tag);
    T* data = tensor.data<T>();
    constexpr int64_t kChunk =
        1 << 16;  // each with a generator of its own, so that threads can share the work
    parallel_for((tensor.numel() + kChunk - 1) / kChunk, 1, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        // A linear congruential generator: Knuth's MMIX.
        uint64_t state = (seed + static_cast<uint64_t>(chunk) * 0xd1342543de82ef95u) * 0x9e3779b97f4a7c15u;
        const int64_t last = std::min(tensor.numel(), (chunk + 1) * kChunk);
        for (int64_t i = chunk * kChunk; i < last; ++i) {
          state = state * 6364136223846793005u + 1442695040888963407u;
          data[i] = T(static_cast<float>(static_cast<int64_t>(state) >> 40) * 0x1p-23f);
        }
      }
    });
  });
  return tensor;
}

void set_counters(benchmark::State& state, double seconds, double bytes, double flops, DType dtype,
                  double operations) {
  if (bytes > 0) {
    state.counters["bytes_per_second"] = bytes / seconds;
    state.counters["of_read_bandwidth"] = bytes / seconds / read_bandwidth();
  }
  if (flops > 0) {
    state.counters["flops"] = flops / seconds;
    state.counters["of_matmul_rate"] = flops / seconds / matmul_rate(dtype);
  }
  if (operations > 0) state.counters["operations"] = operations / seconds;
}

}  // namespace ladder::bench

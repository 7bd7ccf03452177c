// The ceilings that the other benchmarks are measured against.
#include "bench/support/bench_support.h"

namespace ladder::bench {
namespace {

void ceiling_read_bandwidth(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(read_bandwidth());
  state.counters["bytes_per_second"] = read_bandwidth();
}
BENCHMARK(ceiling_read_bandwidth)->Iterations(1)->Unit(benchmark::kMillisecond);

void ceiling_matmul_rate(benchmark::State& state, DType dtype) {
  for (auto _ : state) benchmark::DoNotOptimize(matmul_rate(dtype));
  state.counters["flops"] = matmul_rate(dtype);
}
BENCHMARK_CAPTURE(ceiling_matmul_rate, f32, DType::f32)->Iterations(1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(ceiling_matmul_rate, bf16, DType::bf16)->Iterations(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace ladder::bench

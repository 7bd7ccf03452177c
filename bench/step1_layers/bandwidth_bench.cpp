// The ceilings that the other benchmarks are measured against.
#include "bench/support/bench_cuda.h"

namespace ladder::bench {
namespace {

void ceiling_read_bandwidth(benchmark::State& state) {
  state.SetLabel(cpu_name());
  for (auto _ : state) benchmark::DoNotOptimize(read_bandwidth());
  state.counters["bytes_per_second"] = read_bandwidth();
}
BENCHMARK(ceiling_read_bandwidth)->Iterations(1)->Unit(benchmark::kMillisecond);

void ceiling_matmul_rate(benchmark::State& state, DType dtype) {
  state.SetLabel(cpu_name());
  for (auto _ : state) benchmark::DoNotOptimize(matmul_rate(dtype));
  state.counters["flops"] = matmul_rate(dtype);
}
BENCHMARK_CAPTURE(ceiling_matmul_rate, f32, DType::f32)->Iterations(1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(ceiling_matmul_rate, bf16, DType::bf16)->Iterations(1)->Unit(benchmark::kMillisecond);

// Of the GPU: a ceiling's label is the name of the machine it belongs to.
void ceiling_of_gpu(benchmark::State& state, const char* counter, double (*measured)()) {
  if (cuda_bench_context() == nullptr) {
    state.SkipWithError("no GPU");
    return;
  }
  state.SetLabel(cuda_device_info(0).name);
  for (auto _ : state) benchmark::DoNotOptimize(measured());
  state.counters[counter] = measured();
}
BENCHMARK_CAPTURE(ceiling_of_gpu, copy_bandwidth, "bytes_per_second", cuda_copy_bandwidth)
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(ceiling_of_gpu, matmul_rate, "flops", cuda_matmul_rate)
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace ladder::bench

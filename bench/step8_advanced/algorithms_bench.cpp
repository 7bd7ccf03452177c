// What the quantizer's algorithms take for a square matrix: calibration's H, the factor of its inverse, and the whole of GPTQ at
// 4 bits. One iteration each: these are seconds, and nothing is warm.
#include <benchmark/benchmark.h>

#include <numeric>
#include <vector>

#include "bench/support/bench_support.h"
#include "step8_advanced/quantization/algorithms/damped_factor.h"
#include "step8_advanced/quantization/algorithms/gptq.h"
#include "step8_advanced/quantization/algorithms/hessian.h"

namespace ladder::bench {
namespace {

constexpr int64_t kRows = 4096;  // of calibration

Tensor hessian_of(int64_t k) {
  Hessian hessian(k, "bench");
  hessian.add(random_tensor({kRows, k}, DType::f32));
  return hessian.matrix();
}

void hessian(benchmark::State& state) {
  const Tensor x = random_tensor({kRows, state.range(0)}, DType::f32);
  for (auto _ : state) {
    Hessian hessian(state.range(0), "bench");
    hessian.add(x);
    benchmark::DoNotOptimize(hessian.matrix());
  }
}

void factor_of_inverse(benchmark::State& state) {
  const Tensor h = hessian_of(state.range(0));
  std::vector<int32_t> order(static_cast<size_t>(state.range(0)));
  std::iota(order.begin(), order.end(), 0);
  for (auto _ : state) benchmark::DoNotOptimize(damped_factor(h, order, "bench", 0.01, 1));
}

void gptq_w4(benchmark::State& state) {
  const int64_t k = state.range(0);
  const Tensor h = hessian_of(k), weight = random_tensor({k, k}, DType::f32);
  const QuantizationArgs args{.num_bits = 4,
                              .strategy = ScaleStrategy::group,
                              .group_size = state.range(1),
                              .actorder = static_cast<ActivationOrder>(state.range(2))};
  for (auto _ : state) benchmark::DoNotOptimize(gptq(weight, h, args, "bench"));
}

const std::vector<int64_t> kSizes = {1024, 4096};

BENCHMARK(hessian)
    ->ArgName("k")
    ->ArgsProduct({kSizes})
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1)
    ->UseRealTime();
BENCHMARK(factor_of_inverse)
    ->ArgName("k")
    ->ArgsProduct({kSizes})
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1)
    ->UseRealTime();
BENCHMARK(gptq_w4)
    ->ArgNames({"k", "group", "actorder"})
    ->ArgsProduct({kSizes,
                   {128},
                   {static_cast<int64_t>(ActivationOrder::none),
                    static_cast<int64_t>(ActivationOrder::weight)}})
    ->ArgsProduct({kSizes, {16}, {static_cast<int64_t>(ActivationOrder::none)}})
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1)
    ->UseRealTime();

}  // namespace
}  // namespace ladder::bench

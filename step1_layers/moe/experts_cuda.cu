#include "step1_layers/core/packs.cuh"
#include "step1_layers/moe/experts_cuda.cuh"

namespace ladder {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// naive
// Any shape and dtype. A warp per value that is computed: one kernel for the activated values of all pairs, one for the
// outputs, which adds up the experts of a token in their order. Every pair reads its expert's weights anew.
template <class T>
__device__ float warp_dot(const T* a, const T* b, int size) {
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < size; i += kWarp)
    sum += to_float(a[i]) * to_float(b[i]);
  return warp_sum(sum);
}

template <class T>
__global__ void __launch_bounds__(kThreads) activate_naive(Experts<T> e, T* activated) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t value = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (value >= int64_t{e.pairs()} * e.width) return;
  const int pair = static_cast<int>(value / e.width), column = static_cast<int>(value % e.width);
  const int expert = e.expert_of(pair);
  if (expert < 0) return;
  const T* x = e.x + pair / e.top_k * e.x_stride;
  const float gate = warp_dot(x, e.gate_row(expert, column), e.hidden);
  const float up = warp_dot(x, e.up_row(expert, column), e.hidden);
  if (threadIdx.x % kWarp == 0) activated[value] = from_float<T>(silu_and_mul<T>(gate, up));
}

template <class T>
__global__ void __launch_bounds__(kThreads) project_naive(Experts<T> e, const T* activated) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t value = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (value >= int64_t{e.tokens} * e.hidden) return;
  const int token = static_cast<int>(value / e.hidden), column = static_cast<int>(value % e.hidden);
  float sum = 0;
  for (int pair = token * e.top_k; pair < (token + 1) * e.top_k; ++pair)
    if (const int expert = e.expert_of(pair); expert >= 0)
      sum += e.weights[pair] *
             warp_dot(activated + int64_t{pair} * e.width, e.down_row(expert, column), e.width);
  if (threadIdx.x % kWarp == 0) e.out[token * e.out_stride + column] = from_float<T>(sum);
}

// A pack of a token's columns per thread. The parts of some experts are asked for at once, and before it is known which of
// them are here: one wait for memory instead of two for each.
template <class T, class Result>
__global__ void __launch_bounds__(kThreads) combine(Experts<T> e, const Result* results) {
  constexpr int kAtOnce = 8, kParts = Pack<T>::kSize / Pack<Result>::kSize;
  allow_next_kernel();
  const int packs = e.hidden / Pack<T>::kSize;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  wait_for_previous_kernel();
  if (index >= int64_t{e.tokens} * packs) return;
  const int token = static_cast<int>(index / packs),
            column = static_cast<int>(index % packs) * Pack<T>::kSize;
  const int end = (token + 1) * e.top_k;
  float sum[Pack<T>::kSize] = {};
  for (int first = token * e.top_k; first < end; first += kAtOnce) {
    int experts[kAtOnce];
    Pack<Result> parts[kAtOnce][kParts];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int pair = min(first + i, end - 1);
      experts[i] = first + i < end ? e.expert_of(pair) : -1;
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        parts[i][part] = load_pack(results + int64_t{pair} * e.hidden + column + part * Pack<Result>::kSize);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (experts[i] < 0) continue;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        float values[Pack<Result>::kSize];
        to_floats(parts[i][part], values);
#pragma unroll
        for (int k = 0; k < Pack<Result>::kSize; ++k) sum[part * Pack<Result>::kSize + k] += values[k];
      }
    }
  }
  store_pack(e.out + token * e.out_stride + column, from_floats<T>(sum));
}

}  // namespace

void moe_experts_cuda(const OpContext& ctx, const MoeExpertsArgs& args) {
  with_cuda_type(args.x.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const Experts<T> e = experts_of<T>(args);
    ArenaScope scope(*ctx.arena);
    const Tensor activated = ctx.arena->take({e.pairs(), e.width}, args.x.dtype());
    auto blocks = [](int64_t values) { return static_cast<unsigned>(ceil_div<int64_t>(values, kWarps)); };
    launch_kernel(ctx, activate_naive<T>, blocks(int64_t{e.pairs()} * e.width), kThreads, 0, e,
                  cuda_data<T>(activated));
    launch_kernel(ctx, project_naive<T>, blocks(int64_t{e.tokens} * e.hidden), kThreads, 0, e,
                  cuda_data<T>(activated));
  });
}

void combine_results(const OpContext& ctx, const Tensor& expert_ids, int64_t experts, const Tensor& results,
                     const Tensor& out) {
  with_cuda_type(out.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const Experts<T> e{.expert_ids = cuda_data<int32_t>(expert_ids),
                       .out = cuda_data<T>(out),
                       .out_stride = out.stride(0),
                       .tokens = static_cast<int>(out.dim(0)),
                       .top_k = static_cast<int>(expert_ids.dim(1)),
                       .experts = static_cast<int>(experts),
                       .hidden = static_cast<int>(out.dim(1))};
    const int64_t packs = int64_t{e.tokens} * (e.hidden / Pack<T>::kSize);
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(packs, kThreads));
    if (results.dtype() == DType::f32)
      launch_kernel(ctx, combine<T, float>, blocks, kThreads, 0, e, cuda_data<float>(results));
    else
      launch_kernel(ctx, combine<T, T>, blocks, kThreads, 0, e, cuda_data<T>(results));
  });
}

}  // namespace ladder

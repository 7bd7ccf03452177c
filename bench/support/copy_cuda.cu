#include "bench/support/copy_cuda.h"

#include "step1_layers/core/cuda_kernel.cuh"

namespace ladder::bench {
namespace {

constexpr int kThreads = 512, kInFlight = 4;  // packs a thread reads before it writes the first

__global__ void __launch_bounds__(kThreads) copy_kernel(const uint4* from, uint4* to, int64_t packs) {
  allow_next_kernel();
  const int64_t first = int64_t{blockIdx.x} * kThreads * kInFlight + threadIdx.x;
  wait_for_previous_kernel();
  uint4 values[kInFlight];
#pragma unroll
  for (int i = 0; i < kInFlight; ++i)
    if (first + i * kThreads < packs) values[i] = from[first + i * kThreads];
#pragma unroll
  for (int i = 0; i < kInFlight; ++i)
    if (first + i * kThreads < packs) to[first + i * kThreads] = values[i];
}

}  // namespace

void copy_by_kernel(const OpContext& ctx, const void* from, void* to, int64_t bytes) {
  const int64_t packs = bytes / static_cast<int64_t>(sizeof(uint4));
  const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(packs, kThreads * kInFlight));
  launch_kernel(ctx, copy_kernel, blocks, kThreads, 0, static_cast<const uint4*>(from),
                static_cast<uint4*>(to), packs);
}

}  // namespace ladder::bench

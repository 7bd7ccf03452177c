#pragma once
// How many threads own a row of the norm that is kept in registers, and how they add: what kernels must share to come
// to the same bits.
#include <iterator>

#include "step1_layers/core/cuda_kernel.cuh"

namespace ladder {

struct RowSplit {
  int max_packs;  // of a row
  int threads, packs;
};
// threads * packs covers the row with as few idle threads as the width allows. A row of a warp or less needs
// no barrier, a longer one one barrier; several packs per thread keep several loads in flight, but fused each
// pack takes twice the registers (row and residual), so there the threads are more and the packs fewer. Of a
// copy's bandwidth at 64 MB and more, bf16 on an H200 (bench/results/h200/step1_layers.json):
// clang-format off
inline constexpr RowSplit kRowSplits[] = {
    {16, 8, 2},        // heads of up to 128 values, four to a warp
    {64, 32, 2},       // a row per warp
    {128, 32, 4},      // 1024 columns: 1.01
    {256, 128, 2},
    {512, 256, 2},     // 4096 columns: 1.02
    {640, 160, 4},     // 5120 columns: 1.02
    {1024, 512, 2},
    {2048, 1024, 2}};
inline constexpr RowSplit kFusedRowSplits[] = {
    {16, 8, 2},
    {64, 32, 2},
    {128, 128, 1},     // 1024 columns: 1.00
    {256, 128, 2},
    {512, 512, 1},     // 4096 columns: 0.97
    {640, 320, 2},     // 5120 columns: 0.99
    {1024, 512, 2},
    {2048, 1024, 2}};
// clang-format on
inline constexpr int kNumRowSplits = 8;
inline constexpr int64_t kMaxRowPacks = kRowSplits[kNumRowSplits - 1].max_packs;
static_assert(std::size(kRowSplits) == kNumRowSplits && std::size(kFusedRowSplits) == kNumRowSplits);

__host__ __device__ constexpr int block_threads(int threads) {
  return threads < 128 ? 128 : threads;
}
// Over the threads of a row: of a warp, or of a block that owns one row and calls this once.
template <int threads>
__device__ float row_sum(float x) {
  if constexpr (threads <= kWarp) {
    return warp_sum<threads>(x);
  } else {
    __shared__ float partial[threads / kWarp];
    x = warp_sum(x);
    if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;
    __syncthreads();
    x = 0;
#pragma unroll
    for (float part : partial) x += part;
    return x;
  }
}

}  // namespace ladder

#pragma once
// A row of logits held by a cluster of eight blocks, a piece in the shared memory of each (compute capability
// 9.0): it is read from memory once, however often it is looked at.
#include "step1_layers/sampling/cluster_cuda.cuh"
#include "step1_layers/sampling/noise_cuda.cuh"

namespace ladder::cluster_row {

inline constexpr int kBlocks = 8;  // of a cluster
inline constexpr int kThreads = 512;
inline constexpr int64_t kMaxPiece = 48 * 1024;  // values of a block: what shared memory holds
inline constexpr int64_t kMaxVocab = kBlocks * kMaxPiece;

// Values per block, a multiple of four; the split depends on the width alone.
template <int blocks = kBlocks>
__host__ __device__ int64_t piece_size(int64_t vocab) {
  return ceil_div<int64_t>(vocab, blocks * kGroup) * kGroup;
}

// A row as one block sees it.
struct Row {
  float* piece;  // shared memory: values begin, ..., end - 1 of the row in groups of four, then -inf
  int groups;
  int64_t begin, end;
  float largest;            // of the whole row, once the blocks have shared it
  float floor = -INFINITY;  // values below it are cut
  __device__ bool takes_part(float x) const { return x >= floor && x > -INFINITY; }
};

// Copies this block's piece of a row to its dynamic shared memory, divided by the temperature (below
// kMinTemperature and 1: as it is). `mine` becomes the largest value of this thread, NaN where one is NaN.
// A thread later sees what it wrote itself, so no thread waits.
__device__ inline Row load_row(const float* x, int64_t vocab, float temperature, float* mine) {
  constexpr int kUnroll = 5;  // loads in flight per thread
  extern __shared__ float4 dynamic_shared[];
  const int64_t begin = min(cluster_rank() * piece_size<>(vocab), vocab);
  const int64_t end = min(begin + piece_size<>(vocab), vocab);
  auto* piece = reinterpret_cast<float*>(dynamic_shared);
  const bool aligned = is_aligned(x), divides = temperature >= kMinTemperature && temperature != 1.0f;
  float largest = -INFINITY;
  for (int64_t first = begin + threadIdx.x * kGroup; first < end; first += kUnroll * kThreads * kGroup) {
    float values[kUnroll][kGroup];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) load_group(x, first + j * kThreads * kGroup, end, aligned, values[j]);
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      const int64_t at = first + j * kThreads * kGroup;
      if (at >= end) continue;
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        if (divides) values[j][i] = __fdiv_rn(values[j][i], temperature);
        largest = max_or_nan(largest, values[j][i]);
      }
      *reinterpret_cast<float4*>(piece + (at - begin)) =
          float4{values[j][0], values[j][1], values[j][2], values[j][3]};
    }
  }
  *mine = largest;
  return {.piece = piece,
          .groups = static_cast<int>(ceil_div<int64_t>(end - begin, kGroup)),
          .begin = begin,
          .end = end,
          .largest = largest};
}

// Calls fn(value, place in the piece) for the values that take part; a thread sees its own groups only.
template <class Fn>
__device__ void for_each_value(const Row& row, Fn&& fn) {
  for (int group = threadIdx.x; group < row.groups; group += kThreads) {
    float values[kGroup];
    load_four(row.piece + group * kGroup, values);
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (row.takes_part(values[i])) fn(values[i], group * kGroup + i);
  }
}

// The sum of the values of the threads before this one, and of all.
struct Scan {
  uint64_t before, total;
};
__device__ inline Scan block_scan(uint64_t value) {
  __shared__ uint64_t warp_sums[kThreads / kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  uint64_t sum = value;  // inclusive over the warp
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const uint64_t other = __shfl_up_sync(kAllLanes, sum, offset);
    if (lane >= offset) sum += other;
  }
  __syncthreads();  // readers of the call before are done
  if (lane == kWarp - 1) warp_sums[warp] = sum;
  __syncthreads();
  Scan scan{sum - value, 0};
#pragma unroll
  for (int i = 0; i < kThreads / kWarp; ++i) {
    if (i < warp) scan.before += warp_sums[i];
    scan.total += warp_sums[i];
  }
  return scan;
}

// Launches a kernel of clusters, one per row, with room for a piece in each block's dynamic shared memory.
template <class... Params, class... Args>
void launch_rows(const OpContext& ctx, void (*kernel)(Params...), int64_t rows, int64_t vocab,
                 const Args&... args) {
  if (rows == 0) return;
  if (ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), kMaxPiece * int64_t{sizeof(float)}))
    LADDER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                           cudaSharedmemCarveoutMaxShared));
  launch_kernel(ctx, kernel, static_cast<unsigned>(rows * kBlocks), kThreads,
                static_cast<size_t>(piece_size<>(vocab)) * sizeof(float), args...);
}

}  // namespace ladder::cluster_row

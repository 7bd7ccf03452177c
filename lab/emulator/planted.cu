#include "lab/emulator/planted.h"

#include <cuda_runtime.h>

namespace ladder_planted {

namespace {

constexpr int kThreads = 64;

// Each on one block, or on two where it is named so. `data` has 256 floats, the first 128 known; the second half is
// memory that nobody wrote.

// The sum of a block by halving: without a barrier a thread adds what its neighbour has not written yet.
__global__ void race_sum_without_barrier(float* data) {
  __shared__ float sums[kThreads];
  sums[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2)
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  if (threadIdx.x == 0) data[0] = sums[0];
}

// One barrier short: partial sums of the warps are read before all are there.
__global__ void race_partial_sums(float* data) {
  __shared__ float partial[2];
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = data[threadIdx.x];
  data[threadIdx.x] = partial[0] + partial[1];
}

// The next tile is written while others still read this one.
__global__ void race_next_tile(float* data) {
  __shared__ float tile[kThreads];
  float sum = 0;
  for (int step = 0; step < 2; ++step) {
    tile[threadIdx.x] = data[step * kThreads + threadIdx.x];
    __syncthreads();
    sum += tile[kThreads - 1 - threadIdx.x];
  }
  data[threadIdx.x] = sum;
}

// All count in one place, without an atomic.
__global__ void race_histogram(float* data) {
  __shared__ int counts[4];
  if (threadIdx.x < 4) counts[threadIdx.x] = 0;
  __syncthreads();
  counts[threadIdx.x % 4] += 1;
  __syncthreads();
  if (threadIdx.x < 4) data[threadIdx.x] = static_cast<float>(counts[threadIdx.x]);
}

// Within a warp, without __syncwarp: lanes need not run in step.
__global__ void race_inside_a_warp(float* data) {
  __shared__ float values[kThreads];
  values[threadIdx.x] = data[threadIdx.x];
  data[threadIdx.x] = values[threadIdx.x ^ 1];
}

// Every thread writes the maximum.
__global__ void race_two_writers(float* data) {
  __shared__ float largest;
  if (threadIdx.x == 0) largest = data[0];
  __syncthreads();
  if (data[threadIdx.x] >= largest) largest = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = largest;
}

// In global memory, within a block: racecheck looks at shared memory only.
__global__ void race_global(float* data) {
  data[threadIdx.x] = data[(threadIdx.x + 1) % kThreads] + 1;
}
__global__ void race_two_blocks(float* data) {
  if (threadIdx.x == 0) data[0] += 1;
}

__global__ void out_of_bounds_global(float* data) {
  data[128 + threadIdx.x] = data[threadIdx.x < kThreads - 1 ? threadIdx.x : 256];
}
__global__ void out_of_bounds_shared(float* data) {
  __shared__ float tile[kThreads];
  __shared__ float other[kThreads];
  other[threadIdx.x] = tile[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = tile[threadIdx.x + 1] + other[threadIdx.x];
}
__global__ void misaligned_pack(float* data) {
  *reinterpret_cast<float4*>(data + 4 * threadIdx.x % 64) = *reinterpret_cast<const float4*>(data + 1);
}
__global__ void uninitialised_shared(float* data) {
  __shared__ float sums[kThreads];
  if (threadIdx.x < kThreads - 1) sums[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = sums[threadIdx.x];
}
__global__ void uninitialised_global(float* data) {
  data[threadIdx.x] = data[128 + threadIdx.x];
}

__global__ void barrier_in_a_branch(float* data) {
  if (threadIdx.x < 32) {
    data[threadIdx.x] += 1;
    __syncthreads();
  }
}
__global__ void barrier_after_return(float* data) {
  if (threadIdx.x >= kThreads - 1) return;
  __syncthreads();
  data[threadIdx.x] += 1;
}
__global__ void shuffle_in_a_branch(float* data) {
  float x = data[threadIdx.x];
  if (threadIdx.x % 32 < 16) x += __shfl_xor_sync(0xffffffffu, x, 1);
  __syncwarp();
  data[threadIdx.x] = x;
}

// Clean. What they cost is in the tests.
__global__ void clean_sum(float* data) {
  extern __shared__ float sums[];
  sums[threadIdx.x] = data[threadIdx.x];
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) data[0] = sums[0];
}
__global__ void clean_warp_exchange(float* data) {
  __shared__ float values[kThreads];
  __shared__ int counts[4];
  values[threadIdx.x] = data[threadIdx.x];
  if (threadIdx.x < 4) counts[threadIdx.x] = 0;
  __syncwarp();
  const float x = values[threadIdx.x ^ 1];
  __syncthreads();
  atomicAdd(&counts[threadIdx.x % 4], 1);
  __syncthreads();
  const unsigned mask = __ballot_sync(0xffffffffu, threadIdx.x % 3 == 0);
  data[threadIdx.x] = x + static_cast<float>(counts[threadIdx.x % 4] + __popc(mask));
}
// A column of a tile of 32 x 32: all lanes in one bank.
__global__ void conflicts_column(float* data) {
  __shared__ float tile[32][32];
  for (int row = threadIdx.x / 32; row < 32; row += 2) tile[row][threadIdx.x % 32] = data[threadIdx.x];
  __syncthreads();
  if (threadIdx.x < 32) data[threadIdx.x] = tile[threadIdx.x][0];
}
// A row longer by one: each lane in a bank of its own.
__global__ void conflicts_padded(float* data) {
  __shared__ float tile[32][33];
  for (int row = threadIdx.x / 32; row < 32; row += 2) tile[row][threadIdx.x % 32] = data[threadIdx.x];
  __syncthreads();
  if (threadIdx.x < 32) data[threadIdx.x] = tile[threadIdx.x][0];
}
// Eight floats apart: a sector for every lane.
__global__ void sectors_strided(float* data) {
  if (threadIdx.x < 16) data[128 + threadIdx.x] = data[8 * threadIdx.x];
}
__global__ void sectors_packed(float* data) {
  if (threadIdx.x < 16) {
    const float4 four = reinterpret_cast<const float4*>(data)[threadIdx.x];
    reinterpret_cast<float4*>(data)[threadIdx.x] = float4{four.w, four.z, four.y, four.x};
  }
}

template <void (*kernel)(float*)>
void run_on(int blocks) {
  float known[128], *data = nullptr;
  for (int i = 0; i < 128; ++i) known[i] = static_cast<float>(i % 5);
  cudaMalloc(&data, 256 * sizeof(float));
  cudaMemcpy(data, known, sizeof(known), cudaMemcpyHostToDevice);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kThreads * sizeof(float);
  cudaLaunchKernelEx(&config, kernel, data);
  cudaDeviceSynchronize();
  cudaFree(data);
}

template <void (*kernel)(float*), int blocks = 1>
void run() {
  run_on<kernel>(blocks);
}

#define LADDER_PLANTED(kernel, expected) \
  { #kernel, expected, run < kernel> }
constexpr Planted kPlanted[] = {
    LADDER_PLANTED(race_sum_without_barrier, "a race on shared memory `sums`"),
    LADDER_PLANTED(race_partial_sums, "a race on shared memory `partial`"),
    LADDER_PLANTED(race_next_tile, "a race on shared memory `tile`"),
    LADDER_PLANTED(race_histogram, "a race on shared memory `counts`"),
    LADDER_PLANTED(race_inside_a_warp, "a race on shared memory `values`"),
    LADDER_PLANTED(race_two_writers, "a race on shared memory `largest`"),
    LADDER_PLANTED(race_global, "a race on global memory"),
    {"race_two_blocks", "a race on global memory", run<race_two_blocks, 2>},
    LADDER_PLANTED(out_of_bounds_global, "a read out of bounds"),
    LADDER_PLANTED(out_of_bounds_shared, "a read out of bounds"),
    LADDER_PLANTED(misaligned_pack, "a misaligned access"),
    LADDER_PLANTED(uninitialised_shared, "an uninitialised read"),
    LADDER_PLANTED(uninitialised_global, "an uninitialised read"),
    LADDER_PLANTED(barrier_in_a_branch, "a barrier that not all threads of the block reach"),
    LADDER_PLANTED(barrier_after_return, "a barrier that not all threads of the block reach"),
    LADDER_PLANTED(shuffle_in_a_branch, "lanes of a warp that do not meet"),
    LADDER_PLANTED(clean_sum, ""),
    LADDER_PLANTED(clean_warp_exchange, ""),
    LADDER_PLANTED(conflicts_column, ""),
    LADDER_PLANTED(conflicts_padded, ""),
    LADDER_PLANTED(sectors_strided, ""),
    LADDER_PLANTED(sectors_packed, ""),
};

}  // namespace

std::span<const Planted> planted() {
  return kPlanted;
}

}  // namespace ladder_planted

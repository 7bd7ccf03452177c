#include "tests/emulator/lanes.h"

#include <cuda_runtime.h>

namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kOperations = 13;

__global__ void exchange(int* out) {
  const int lane = static_cast<int>(threadIdx.x), value = 100 + lane;
  int at = 0;
  const auto store = [&](int result) { out[32 * at++ + lane] = result; };
  store(__shfl_sync(kAll, value, 5));
  store(__shfl_sync(kAll, value, 1, 8));
  store(__shfl_xor_sync(kAll, value, 3));
  store(__shfl_down_sync(kAll, value, 2));
  store(__shfl_up_sync(kAll, value, 1, 16));
  store(static_cast<int>(__ballot_sync(kAll, lane % 2)));
  store(__any_sync(kAll, lane == 7));
  store(__all_sync(kAll, lane != 7));
  store(static_cast<int>(__match_any_sync(kAll, lane % 4)));
  store(__reduce_add_sync(kAll, lane));
  store(__reduce_min_sync(kAll, lane - 16));
  store(static_cast<int>(__reduce_max_sync(kAll, static_cast<unsigned>(lane))));
  // Halves of a warp, each among themselves.
  const unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
  int sum = value;
  if (lane < 16)
    sum = __reduce_add_sync(half, lane);
  else
    sum = __reduce_add_sync(half, 1);
  store(sum);
}

__global__ void count(int* out) {
  __shared__ int total;
  if (threadIdx.x == 0) total = 0;
  const bool low = threadIdx.x < 10;
  const int some = __syncthreads_count(low), any = __syncthreads_or(low), all = __syncthreads_and(low);
  atomicAdd(&total, static_cast<int>(threadIdx.x));
  __syncthreads();
  if (threadIdx.x == 63) {
    out[0] = some;
    out[1] = any;
    out[2] = all;
    out[3] = total;
    out[4] = atomicMax(&out[3], 7);
    out[5] = atomicCAS(&out[0], 10, 11);
  }
}

}  // namespace

std::vector<std::vector<int>> exchange_lanes() {
  int* out = nullptr;
  cudaMalloc(&out, kOperations * 32 * sizeof(int));
  exchange<<<1, 32>>>(out);
  std::vector<std::vector<int>> results;
  for (int i = 0; i < kOperations; ++i) results.emplace_back(out + 32 * i, out + 32 * i + 32);
  cudaFree(out);
  return results;
}

std::vector<int> count_block() {
  int* out = nullptr;
  cudaMalloc(&out, 6 * sizeof(int));
  count<<<1, 64>>>(out);
  const std::vector<int> results(out, out + 6);
  cudaFree(out);
  return results;
}

int host_reads_the_device() {
  int* out = nullptr;
  cudaMalloc(&out, sizeof(int));
  const int value = *out;
  cudaFree(out);
  return value;
}

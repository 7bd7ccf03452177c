#pragma once
// The largest value and the sum that a softmax needs, over a row that one block reads.
#include "step1_layers/core/cuda_kernel.cuh"

namespace ladder::row_sum {

inline constexpr int kThreads = 1024;

// The largest value of a row and the sum of e^(x - largest).
struct RowSum {
  float largest, sum;
};

// Two passes over the row: the largest value, then the sum.
__device__ inline RowSum row_sum_two_passes(const float* x, int64_t vocab) {
  float largest = -INFINITY, sum = 0;
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) largest = fmaxf(largest, x[i]);
  largest = block_max(largest);
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) sum += expf(x[i] - largest);
  return {largest, block_sum(sum)};
}

// One pass (Milakov and Gimelshein, 2018, arXiv 1805.02867): every thread keeps a sum relative to the largest
// value it has seen and corrects it when that grows; eight values are loaded before the first is used.
__device__ inline RowSum row_sum_online(const float* x, int64_t vocab) {
  constexpr int kUnroll = 8;
  RowSum mine{-INFINITY, 0};
  for (int64_t first = threadIdx.x; first < vocab; first += kUnroll * kThreads) {
    float values[kUnroll];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j)
      values[j] = first + j * kThreads < vocab ? x[first + j * kThreads] : -INFINITY;
    float largest = mine.largest;
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) largest = fmaxf(largest, values[j]);
    if (largest == -INFINITY) continue;
    mine.sum *= expf(mine.largest - largest);
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) mine.sum += expf(values[j] - largest);
    mine.largest = largest;
  }
  const float largest = block_max(mine.largest);
  return {largest, block_sum(mine.largest == -INFINITY ? 0.0f : mine.sum * expf(mine.largest - largest))};
}

}  // namespace ladder::row_sum

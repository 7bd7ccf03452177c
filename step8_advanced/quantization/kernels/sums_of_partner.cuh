#pragma once
// Tiles whose columns two blocks share out (Tokens::split of tile_products.cuh), where there are so few tiles that half of the
// multiprocessors would have none. They are a cluster, and each pair has one tile.
#include "step1_layers/core/cluster.cuh"
#include "step1_layers/core/cluster_bytes.cuh"
#include "step8_advanced/quantization/kernels/tile_products.cuh"

namespace ladder::tile_products {

// Behind the ring in shared memory.
template <class T>
__device__ T* behind_ring(int ring_bytes) {
  extern __shared__ unsigned char shared[];
  return reinterpret_cast<T*>(shared + ring_bytes);
}

// Of two blocks that have shared out a tile's columns the second one gives its sums to the first.
template <class Shape>
struct SumsOfPartner {
  static constexpr int kBytes = Shape::kRows * Shape::kTokens * 4;
  float* sums;
  uint32_t in_place;  // a barrier

  // By all threads, before all else.
  __device__ void set_up() const {
    if (threadIdx.x == 0) set_up_byte_barrier(in_place, kBytes);
    __syncwarp();
    cluster_arrive_relaxed();
  }
  // Whether this is the first block, which has all sums then. By the threads that multiply.
  template <class Sum>
  __device__ bool gather(Sum (&d)[Shape::kRowGroups][Shape::kSums]) const {
    constexpr int kMultiply = Shape::kConsumers * kWarpgroup;
    const int thread = static_cast<int>(threadIdx.x) - kWarpgroup;
    const bool first = blockIdx.x % 2 == 0;
    cluster_wait();
    if (first) wait_for_bytes(in_place);
#pragma unroll
    for (int group = 0; group < Shape::kRowGroups; ++group)
#pragma unroll
      for (int i = 0; i < Shape::kSums; ++i) {
        float* at = sums + (group * Shape::kSums + i) * kMultiply + thread;
        if (first)
          d[group][i] += reinterpret_cast<const Sum&>(*at);
        else
          store_remote(at, in_place, 0, reinterpret_cast<const float&>(d[group][i]));
      }
    return first;
  }
};

}  // namespace ladder::tile_products

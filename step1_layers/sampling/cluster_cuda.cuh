#pragma once
// A row shared out among the blocks of a cluster (compute capability 9.0): they run at the same time and can
// reach each other's shared memory, so a row's result needs no second kernel.
#include <cooperative_groups.h>

#include <algorithm>

#include "step1_layers/sampling/argmax_cuda.cuh"

namespace ladder {

// Kernels with clusters are built for older chips too, but never run there.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ inline int cluster_rank() {
  return static_cast<int>(cooperative_groups::this_cluster().block_rank());
}
// Where an object in this block's shared memory stands in that of another block.
template <class T>
__device__ T* in_block(T* mine, int rank) {
  return cooperative_groups::this_cluster().map_shared_rank(mine, static_cast<unsigned>(rank));
}
// The halves of a barrier: work that needs no other block goes in between.
__device__ inline void cluster_arrive() {
  cooperative_groups::this_cluster().barrier_arrive();
}
__device__ inline void cluster_wait() {
  cooperative_groups::this_cluster().barrier_wait();
}
#else
__device__ inline int cluster_rank() {
  return 0;
}
template <class T>
__device__ T* in_block(T* mine, int) {
  return mine;
}
__device__ inline void cluster_arrive() {}
__device__ inline void cluster_wait() {}
#endif

__device__ inline void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// Every block gets the values of all blocks of its cluster, in the order of their ranks. `slots` stands in
// shared memory and is not in use; whole blocks call, and all blocks of the cluster have started.
template <int blocks, class T>
__device__ void share_with_cluster(const T& mine, T (&slots)[blocks]) {
  if (threadIdx.x < blocks) *in_block(&slots[cluster_rank()], static_cast<int>(threadIdx.x)) = mine;
  cluster_sync();
}

// The best of all blocks, in the first one; `best` is each block's own.
template <int blocks>
__device__ Best cluster_best(Best best) {
  __shared__ Best slots[blocks];
  if (threadIdx.x == 0) *in_block(&slots[cluster_rank()], 0) = best;
  cluster_sync();
  if (cluster_rank() == 0)
#pragma unroll
    for (int i = 0; i < blocks; ++i) best = better(best, slots[i]);
  return best;
}

// Calls launch with the number of blocks per row and cluster: as many as the chip holds at once, where so
// many of them fit on a multiprocessor, but not more than eight, nor more than there is work for. A cluster
// stays within a part of the chip, and the parts are not multiples of four blocks: where clusters of four and
// eight get more than half of the chip (large_share = 1), some may wait for others to end.
template <int large_share, class Launch>
void with_blocks_per_row(const OpContext& ctx, const Tensor& logits, int64_t blocks_per_multiprocessor,
                         Launch&& launch) {
  const int64_t room = blocks_per_multiprocessor * ctx.cuda->num_multiprocessors() / logits.dim(0);
  const int64_t useful = ceil_div<int64_t>(logits.dim(1), 2048);
  const int64_t large = std::min(room / large_share, useful);
  if (large >= 8) return launch(std::integral_constant<int, 8>{});
  if (large >= 4) return launch(std::integral_constant<int, 4>{});
  if (std::min(room, useful) >= 2) return launch(std::integral_constant<int, 2>{});
  launch(std::integral_constant<int, 1>{});
}

}  // namespace ladder

#pragma once
// Blocks of a cluster (sm_90): they run at the same time and can reach each other's shared memory. A kernel says with
// LADDER_CLUSTER_OF (cuda_kernel.cuh) how many they are.
#include <cooperative_groups.h>

#include "step1_layers/core/cuda_kernel.cuh"

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

}  // namespace ladder

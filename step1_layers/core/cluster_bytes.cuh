#pragma once
// Values that blocks of a cluster (cluster.cuh) write into each other's shared memory, counted by a barrier there as they arrive. No
// fence is needed, which would wait for all that a block has under way. PTX ISA, "st.async". Kernels for an older GPU, which none
// launches there, are compiled without.
#include "step1_layers/core/tensor_core.cuh"

namespace ladder {

// Half of cluster_sync() that orders no memory. Once cluster_wait() returns every block of the cluster has started, and what it had set
// up by set_up_byte_barrier() may be used.
__device__ inline void cluster_arrive_relaxed() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

// A barrier in shared memory that opens once, when so many bytes have been written by store_remote(). By one thread, before its block
// arrives at the cluster's barrier.
__device__ inline void set_up_byte_barrier(uint32_t barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}
__device__ inline void wait_for_bytes(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier)
      : "memory");
#endif
}

// Into the shared memory of the cluster's block `rank`, where `mine` and `barrier` lie in this block's.
__device__ inline void store_remote(const float* mine, uint32_t barrier, int rank, float value) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .b32 there, opens;\n"
      "mapa.shared::cluster.u32 there, %0, %2;\n"
      "mapa.shared::cluster.u32 opens, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], %3, [opens];\n"
      "}" ::"r"(shared_address(mine)),
      "r"(barrier), "r"(rank), "f"(value)
      : "memory");
#endif
}
__device__ inline void store_remote(const float4* mine, uint32_t barrier, int rank, const float4& value) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .b32 there, opens;\n"
      "mapa.shared::cluster.u32 there, %0, %2;\n"
      "mapa.shared::cluster.u32 opens, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, [opens];\n"
      "}" ::"r"(shared_address(mine)),
      "r"(barrier), "r"(rank), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
      : "memory");
#endif
}

}  // namespace ladder

#pragma once
// Hopper's matrix instructions and the barriers that order them (sm_90a). PTX ISA, "Asynchronous Warpgroup
// Level Matrix Multiply-Accumulate", "mbarrier", "setmaxnreg". Where the compiled code is for another
// architecture the functions are empty: kernels that call them are not launched there.
#include <cuda.h>

#include "step1_layers/core/tensor_core.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LADDER_WGMMA 1
#endif

namespace ladder {

inline constexpr int kWarpgroup = 128;

// How wgmma finds a tile of 16-bit elements in shared memory that is made of swizzled rows of 128 bytes
// (tensor_core.cuh, swizzled), eight of which are an atom of 1024 bytes; tiles stand at multiples of 1024.
// `stride`: bytes between atoms along the rows; `leading`: bytes between the parts of 64 columns, where the
// operand's rows are the ones that are summed over (B transposed).
__device__ inline uint64_t wgmma_tile(uint32_t shared_address, uint32_t leading = 16,
                                      uint32_t stride = 1024) {
  return uint64_t{shared_address >> 4 & 0x3fff} | uint64_t{leading >> 4} << 16 | uint64_t{stride >> 4} << 32 |
         uint64_t{1} << 62;
}

// The lists of 64 accumulators that m64n128 takes.
#define LADDER_WGMMA_64                                                                                  \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "     \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, " \
  "%41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, " \
  "%61, %62, %63}"
#define LADDER_WGMMA_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define LADDER_WGMMA_16(d, i) \
  LADDER_WGMMA_4(d, i), LADDER_WGMMA_4(d, i + 4), LADDER_WGMMA_4(d, i + 8), LADDER_WGMMA_4(d, i + 12)
#define LADDER_WGMMA_ALL(d) \
  LADDER_WGMMA_16(d, 0), LADDER_WGMMA_16(d, 16), LADDER_WGMMA_16(d, 32), LADDER_WGMMA_16(d, 48)

// D (64 x 128) = A (64 x 16) * B (16 x 128), plus D where `add`, over a warpgroup. Warp w has rows 16 w to
// 16 w + 15: a is what mma_16x8x16 takes of them, and d[4 j + i] what it keeps in d[i] of column tile j. B is
// in shared memory, in rows along the summed dimension, or, `transposed`, in rows along the 128 columns.
// Asynchronous: wgmma_fence before, wgmma_commit after, wgmma_wait before D is looked at or A changed.
template <bool transposed, class T>
__device__ void wgmma_64x128x16(float (&d)[64], const uint32_t* a, uint64_t b, bool add) {
#ifdef LADDER_WGMMA
#define LADDER_WGMMA_CALL(type)                                                                         \
  asm volatile(                                                                                         \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32." type \
      "." type " " LADDER_WGMMA_64 ", {%64, %65, %66, %67}, %68, add, 1, 1, %70;\n}"                    \
      : LADDER_WGMMA_ALL(d)                                                                             \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)),                 \
        "n"(transposed ? 1 : 0))
  if constexpr (std::is_same_v<T, __half>)
    LADDER_WGMMA_CALL("f16");
  else
    LADDER_WGMMA_CALL("bf16");
#undef LADDER_WGMMA_CALL
#endif
}

// Registers that were written before are seen by the wgmma that follow.
__device__ inline void wgmma_fence() {
#ifdef LADDER_WGMMA
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ inline void wgmma_commit() {
#ifdef LADDER_WGMMA
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Waits until at most `pending` committed groups are in flight.
template <int pending>
__device__ void wgmma_wait() {
#ifdef LADDER_WGMMA
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
#endif
}
// The compiler must not move what reads or writes these registers across this point: it does not know that a
// wgmma in flight uses them.
template <int count>
__device__ void keep_in_place(float (&d)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int count>
__device__ void keep_in_place(uint32_t (&d)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+r"(d[i])::"memory");
}
template <class T, int rows, int count>
__device__ void keep_in_place(T (&d)[rows][count]) {
#pragma unroll
  for (int i = 0; i < rows; ++i) keep_in_place(d[i]);
}

// Shared memory written so far by this thread's ordinary instructions is seen by wgmma, after a barrier with
// the threads that issue them.
__device__ inline void fence_for_wgmma() {
#ifdef LADDER_WGMMA
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// The registers of a thread, of all threads of the warpgroup, from here on.
template <int count>
__device__ void take_registers() {
#ifdef LADDER_WGMMA
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
#endif
}
template <int count>
__device__ void give_registers() {
#ifdef LADDER_WGMMA
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
#endif
}

// A barrier in shared memory whose phase ends when `count` arrivals have come.
__device__ inline void init_barrier(uint32_t barrier, int count) {
#ifdef LADDER_WGMMA
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
#endif
}
__device__ inline void arrive(uint32_t barrier) {
#ifdef LADDER_WGMMA
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}
// Waits for the end of a phase of this parity; the phase before the first one has parity 1 and has ended.
__device__ inline void wait_phase(uint32_t barrier, uint32_t parity) {
#ifdef LADDER_WGMMA
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}
// The phase ends only when so many bytes have come too, which copy_box brings. Counts as an arrival.
__device__ inline void arrive_and_expect(uint32_t barrier, uint32_t bytes) {
#ifdef LADDER_WGMMA
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}
// This thread's arrival, when its copy_async so far have arrived: it need not wait for them itself.
__device__ inline void arrive_with_copies(uint32_t barrier) {
#ifdef LADDER_WGMMA
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}
// A box of a tensor (tensor_map_cuda.h) that begins at these coordinates, brought to shared memory by the copy engine. One
// thread asks for it.
__device__ inline void copy_box(uint32_t to, const CUtensorMap& map, uint32_t barrier, int c0, int c1, int c2,
                                int c3, int c4) {
#ifdef LADDER_WGMMA
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(barrier)
      : "memory");
#endif
}
// A barrier among `threads` threads of a block, whole warps. Number 0 is __syncthreads'.
__device__ inline void sync_some(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

}  // namespace ladder

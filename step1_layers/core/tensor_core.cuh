#pragma once
// The instructions that tensor-core kernels are made of (sm_80), and the swizzle that keeps shared memory
// free of bank conflicts. PTX ISA, "Warp Level Matrix Multiply-Accumulate", "cp.async", "ldmatrix".
#include "step1_layers/core/cuda_kernel.cuh"

// These instructions do not exist below compute capability 8.0. The rungs that use them say so (min_arch) and
// are not chosen there; their code still has to compile.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define LADDER_SM80_ASM(...) __trap()
#else
#define LADDER_SM80_ASM(...) asm volatile(__VA_ARGS__)
#endif

namespace ladder {

// D (16 x 8, float) += A (16 x 16, rows) * B (16 x 8, columns) over a warp (sm_80). Lane 4 g + t holds
//   a: rows g and g + 8 at columns 2t, 2t + 1, then both rows at columns 2t + 8, 2t + 9
//   b: rows 2t, 2t + 1 of column g, then rows 2t + 8, 2t + 9
//   d: row g at columns 2t, 2t + 1 (d[0], d[1]), then row g + 8 (d[2], d[3])
//
// The lanes that hold D:
//
//   column     0     1     2     3     4     5     6     7
//   row 0    [ lane 0  ] [ lane 1  ] [ lane 2  ] [ lane 3  ]    d[0], d[1]
//   row 1    [ lane 4  ] [ lane 5  ] [ lane 6  ] [ lane 7  ]
//    ...
//   row 7    [ lane 28 ] [ lane 29 ] [ lane 30 ] [ lane 31 ]
//   row 8    [ lane 0  ] [ lane 1  ] [ lane 2  ] [ lane 3  ]    d[2], d[3]
//    ...
//   row 15   [ lane 28 ] [ lane 29 ] [ lane 30 ] [ lane 31 ]
//
// So a row lies in the four lanes of one g, and a sum over a row is two shuffles.
template <class T>
__device__ void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, __half>)
    LADDER_SM80_ASM(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    LADDER_SM80_ASM(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four 8 x 8 matrices of 16-bit elements from shared memory: lane i gives the address of row i % 8 of matrix
// i / 8, and gets elements 2t, 2t + 1 of row g of each. `transposed`: of column g instead.
template <bool transposed = false>
__device__ void load_matrices(uint32_t (&to)[4], uint32_t shared_address) {
  if constexpr (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address)
                 : "memory");
}

// Sixteen bytes from global to shared memory, past the registers and L1, without waiting; zeros where not
// `valid`.
__device__ inline void copy_async(uint32_t shared_address, const void* from, bool valid) {
  LADDER_SM80_ASM("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address), "l"(from),
                  "r"(valid ? 16 : 0)
                  : "memory");
}
// The same, but L2 fetches the whole line of 128 bytes, for what is read once and all of it: 2 % more of the
// memory's rate.
__device__ inline void copy_of_line_async(uint32_t shared_address, const void* from, bool valid) {
  LADDER_SM80_ASM("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address), "l"(from),
                  "r"(valid ? 16 : 0)
                  : "memory");
}
__device__ inline void commit_copies() {
  LADDER_SM80_ASM("cp.async.commit_group;" ::: "memory");
}
// Waits until at most `pending` groups of this thread's copies are in flight.
template <int pending>
__device__ void wait_copies() {
  LADDER_SM80_ASM("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void store_shared(uint32_t shared_address, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared_address), "r"(value) : "memory");
}
__device__ inline uint4 load_shared(uint32_t shared_address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(shared_address)
               : "memory");
  return value;
}

// The byte offset of 16-byte chunk `chunk` of row `row` in a tile whose rows have 128 bytes (eight chunks).
// Eight rows at the same chunk, what one load_matrices reads, lie in eight different groups of banks.
__device__ inline uint32_t swizzled(int row, int chunk) {
  return static_cast<uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

// Two floats as two 16-bit elements of one register, the first in the lower half.
template <class T>
__device__ uint32_t pack_pair(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

// Sixteen bytes of a stream that is read once: they do not displace what L1 holds. Zeros where not `valid`.
__device__ inline uint4 load_streaming(const void* from, bool valid) {
  uint4 value;
  asm volatile(
      "{\n"
      ".reg .pred valid;\n"
      "setp.ne.b32 valid, %5, 0;\n"
      "mov.b32 %0, 0;\n"
      "mov.b32 %1, 0;\n"
      "mov.b32 %2, 0;\n"
      "mov.b32 %3, 0;\n"
      "@valid ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n"
      "}"
      : "=&r"(value.x), "=&r"(value.y), "=&r"(value.z), "=&r"(value.w)
      : "l"(from), "r"(static_cast<int>(valid)));
  return value;
}

}  // namespace ladder

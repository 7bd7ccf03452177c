#pragma once
// wgmma of operands that lie in shared memory, B always and A mostly, in the shapes that products of this folder take (sm_90a; PTX ISA, "Asynchronous
// Warpgroup Level Matrix Multiply-Accumulate", and its sparse form). Fences, waits and groups are step 1's (wgmma.cuh).
//
//   D (64 x columns) = A (64 x depth) * B (depth x columns), plus D where `add`, over a warpgroup
//
// A and B lie in rows along the depth. Lane 4 g + t of warp w has row 16 w + g of D in d[4 j], d[4 j + 1], at columns 8 j + 2 t and
// 8 j + 2 t + 1, and row 16 w + g + 8 in d[4 j + 2], d[4 j + 3].
#include "step1_layers/core/wgmma.cuh"

namespace ladder {

// Of a tile that is not swizzled: eight rows of 16 bytes one after the other, 128 bytes, are a core matrix; `leading` bytes lie between
// core matrices along the depth, `stride` between those along the rows.
__device__ inline uint64_t wgmma_core_matrices(uint32_t shared_address, uint32_t leading, uint32_t stride) {
  return uint64_t{shared_address >> 4 & 0x3fff} | uint64_t{leading >> 4} << 16 | uint64_t{stride >> 4} << 32;
}

#define LADDER_LIST_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define LADDER_LIST_16 LADDER_LIST_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define LADDER_LIST_32                                                                    \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LADDER_LIST_64                                                                    \
  LADDER_LIST_32                                                                          \
  ", "                                                                                    \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
  "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LADDER_LIST_96                                                                    \
  LADDER_LIST_64                                                                          \
  ", "                                                                                    \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, " \
  "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define LADDER_LIST_128                                                                    \
  LADDER_LIST_96                                                                           \
  ", "                                                                                     \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
  "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "   \
  "%125, %126, %127"
#define LADDER_EACH_4(of, d, i) of(d[i]), of(d[i + 1]), of(d[i + 2]), of(d[i + 3])
#define LADDER_EACH_16(of, d, i)                                                     \
  LADDER_EACH_4(of, d, i), LADDER_EACH_4(of, d, i + 4), LADDER_EACH_4(of, d, i + 8), \
      LADDER_EACH_4(of, d, i + 12)
#define LADDER_EACH_32(of, d, i) LADDER_EACH_16(of, d, i), LADDER_EACH_16(of, d, i + 16)
#define LADDER_ALL_8(of, d) LADDER_EACH_4(of, d, 0), LADDER_EACH_4(of, d, 4)
#define LADDER_ALL_16(of, d) LADDER_EACH_16(of, d, 0)
#define LADDER_ALL_32(of, d) LADDER_EACH_32(of, d, 0)
#define LADDER_ALL_64(of, d) LADDER_ALL_32(of, d), LADDER_EACH_32(of, d, 32)
#define LADDER_ALL_96(of, d) LADDER_ALL_64(of, d), LADDER_EACH_32(of, d, 64)
#define LADDER_ALL_128(of, d) LADDER_ALL_96(of, d), LADDER_EACH_32(of, d, 96)
#define LADDER_FLOAT(x) "+f"(x)
#define LADDER_INTEGER(x) "+r"(x)

// Of two of four: A has 64 x 16 values of depth 32 (bf16 or f16), and `indices` is metadata (sparse_weight.h) that the lanes which
// `selector` names have.
template <class T, int selector, int count>
__device__ void wgmma_sparse(float (&d)[count], uint64_t a, uint64_t b, uint32_t indices, bool add) {
#ifdef LADDER_WGMMA
#define LADDER_SPARSE(type, n, count, a_at, b_at, indices_at, add_at, selector_at)                \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" add_at                                    \
               ", 0;\nwgmma.mma_async.sp.sync.aligned.m64n" n "k32.f32." type "." type            \
               " {" LADDER_LIST_##count "}, %" a_at ", %" b_at ", %" indices_at ", %" selector_at \
                                        ", add, 1, 1, 0, 0;\n}"                                   \
               : LADDER_ALL_##count(LADDER_FLOAT, d)                                              \
               : "l"(a), "l"(b), "r"(indices), "r"(static_cast<int>(add)), "n"(selector))
#define LADDER_SPARSE_OF(type)                                     \
  if constexpr (count == 32)                                       \
    LADDER_SPARSE(type, "64", 32, "32", "33", "34", "35", "36");   \
  else if constexpr (count == 64)                                  \
    LADDER_SPARSE(type, "128", 64, "64", "65", "66", "67", "68");  \
  else if constexpr (count == 96)                                  \
    LADDER_SPARSE(type, "192", 96, "96", "97", "98", "99", "100"); \
  else                                                             \
    LADDER_SPARSE(type, "256", 128, "128", "129", "130", "131", "132");
  if constexpr (std::is_same_v<T, __half>) {
    LADDER_SPARSE_OF("f16")
  } else {
    LADDER_SPARSE_OF("bf16")
  }
#undef LADDER_SPARSE_OF
#undef LADDER_SPARSE
#endif
}

// A in registers, depth 16 (bf16 or f16): a is what mma_16x8x16 takes of a warp's 16 rows.
template <class T, int count>
__device__ void wgmma_of_registers(float (&d)[count], const uint32_t (&a)[4], uint64_t b, bool add) {
#ifdef LADDER_WGMMA
#define LADDER_REGISTERS(type, n, count, a_at, b_at, add_at)                                               \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" add_at ", 0;\nwgmma.mma_async.sync.aligned.m64n" n \
               "k16.f32." type "." type " {" LADDER_LIST_##count "}, {" a_at "}, %" b_at                   \
                                                                 ", add, 1, 1, 0;\n}"                      \
               : LADDER_ALL_##count(LADDER_FLOAT, d)                                                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)))
#define LADDER_REGISTERS_OF(type)                                          \
  if constexpr (count == 32)                                               \
    LADDER_REGISTERS(type, "64", 32, "%32, %33, %34, %35", "36", "37");    \
  else if constexpr (count == 64)                                          \
    LADDER_REGISTERS(type, "128", 64, "%64, %65, %66, %67", "68", "69");   \
  else if constexpr (count == 96)                                          \
    LADDER_REGISTERS(type, "192", 96, "%96, %97, %98, %99", "100", "101"); \
  else                                                                     \
    LADDER_REGISTERS(type, "256", 128, "%128, %129, %130, %131", "132", "133");
  if constexpr (std::is_same_v<T, __half>) {
    LADDER_REGISTERS_OF("f16")
  } else {
    LADDER_REGISTERS_OF("bf16")
  }
#undef LADDER_REGISTERS_OF
#undef LADDER_REGISTERS
#endif
}

// Of codes, depth 32: E4M3 into floats, int8 into 32-bit integers.
#ifdef LADDER_WGMMA
#define LADDER_CODES(types, rest, n, count, a_at, b_at, add_at, of)                                        \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" add_at ", 0;\nwgmma.mma_async.sync.aligned.m64n" n \
               "k32." types " {" LADDER_LIST_##count "}, %" a_at ", %" b_at ", add" rest ";\n}"            \
               : LADDER_ALL_##count(of, d)                                                                 \
               : "l"(a), "l"(b), "r"(static_cast<int>(add)))
#define LADDER_CODES_OF(types, rest, of)                        \
  if constexpr (count == 8)                                     \
    LADDER_CODES(types, rest, "16", 8, "8", "9", "10", of);     \
  else if constexpr (count == 16)                               \
    LADDER_CODES(types, rest, "32", 16, "16", "17", "18", of);  \
  else if constexpr (count == 32)                               \
    LADDER_CODES(types, rest, "64", 32, "32", "33", "34", of);  \
  else if constexpr (count == 64)                               \
    LADDER_CODES(types, rest, "128", 64, "64", "65", "66", of); \
  else if constexpr (count == 96)                               \
    LADDER_CODES(types, rest, "192", 96, "96", "97", "98", of); \
  else                                                          \
    LADDER_CODES(types, rest, "256", 128, "128", "129", "130", of);
#else
#define LADDER_CODES_OF(types, rest, of)
#endif
template <int count>
__device__ void wgmma_codes(float (&d)[count], uint64_t a, uint64_t b, bool add) {
  LADDER_CODES_OF("f32.e4m3.e4m3", ", 1, 1", LADDER_FLOAT)
}
template <int count>
__device__ void wgmma_codes(int32_t (&d)[count], uint64_t a, uint64_t b, bool add) {
  LADDER_CODES_OF("s32.s8.s8", "", LADDER_INTEGER)
}
#undef LADDER_CODES_OF
#ifdef LADDER_WGMMA
#undef LADDER_CODES
#endif

}  // namespace ladder

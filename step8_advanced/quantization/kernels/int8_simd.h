#pragma once
// Kernels of the rungs for 8-bit integers on both sides: raw pointers, one thread, one set of functions per instruction set.
// Sums are exact in 32 bits, so every rung, tile and number of threads gives the same bits.
//
//   madd   x and weight widened to 16 bits, products of neighbours added in 32. (The instruction for 8-bit neighbours,
//          u8 times s8, adds in 16 bits and saturates there: 255 * 127 * 2 is no 16-bit number.)
//   vnni   four neighbours, u8 times s8, added in 32 bits without saturation. x is signed, so 128 is added to it and 128 times
//          the sum of the weight's row taken off again. That sum comes with the codes: a row of ones below x's rows
//          has it as its product, which costs one row more and needs nothing stored.
#include <cstdint>

#include "step1_layers/core/cpu_features.h"

namespace ladder {

inline constexpr int64_t kInt8MaxColumns = 65536;  // of k: 255 * 128 * k is less than 2^31
inline constexpr int64_t kInt8Padding = 64;  // x's rows are zero from k up to a multiple of so many numbers

struct Int8Panel {
  int64_t m = 0, n = 0, k = 0;
  const void* x = nullptr;  // [m, x_stride], i16; for vnni u8
  int64_t x_stride = 0;
  const int8_t* codes = nullptr;
  int64_t codes_stride = 0;
  int32_t* sums = nullptr;  // [m, n]
};

// clang-format off
LADDER_DECLARE_FOR_EACH_ISA(
void int8_madd_sums(const Int8Panel& panel);
void int8_vnni_sums(const Int8Panel& panel);  // avx512 only, and only where cpu_has_vnni()
)
// clang-format on

}  // namespace ladder

#pragma once
// Which instruction set this processor has, asked once at run time: one binary serves every machine.
#include <cstdint>
#include <string>

namespace ladder {

// Ordered: a variant that needs `avx2` also runs on an `avx512` machine. These are the values of
// Variant::min_arch on the CPU. avx512 means F, BW, DQ and VL; avx512_bf16 adds the bf16 dot product; amx the
// matrix unit for bf16.
enum class CpuIsa : int { portable = 0, avx2 = 2, avx512 = 5, avx512_bf16 = 6, amx = 7 };

CpuIsa cpu_isa();
std::string cpu_name();  // the model name, for reports
int64_t physical_memory_bytes();

// A file named x_simd.cpp is compiled once per instruction set, each time inside the namespace LADDER_ISA. To
// keep one set's code out of another's, such a file includes <immintrin.h>, step1_layers/core/simd.h and
// plain declarations only (no error.h: formatting is code), works on raw pointers and instantiates nothing that other files share. This macro
// declares its functions for all sets:
//
//   LADDER_DECLARE_FOR_EACH_ISA(void silu_and_mul_f32(const float* gate_up, float* out, int64_t rows,
//                                                     int64_t columns);)
//
// A SIMD rung takes four pieces: this declaration in x_simd.h; the kernel over Vec (simd.h) in x_simd.cpp, as
// a class template of the element type that ends in one `template struct` line per type; a driver in x.cpp
// that splits the work among threads; a line LADDER_SIMD_RUNGS (simd_rungs.h) in the operator's table.
#if defined(__x86_64__)
#define LADDER_DECLARE_FOR_EACH_ISA(...) \
  namespace portable {                   \
  __VA_ARGS__                            \
  }                                      \
  namespace avx2 {                       \
  __VA_ARGS__                            \
  }                                      \
  namespace avx512 {                     \
  __VA_ARGS__                            \
  }
#else
#define LADDER_DECLARE_FOR_EACH_ISA(...) \
  namespace portable {                   \
  __VA_ARGS__                            \
  }
#endif

}  // namespace ladder

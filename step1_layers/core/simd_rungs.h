#pragma once
// The three fast rungs that most CPU operators have: one kernel source compiled per instruction set
// (cpu_features.h), in one driver that splits the work among threads.
//
//   constexpr Variant<RmsNormArgs> kVariants[] = {
//       {.name = "loop", ...},
//       LADDER_SIMD_RUNGS(rms_norm_fast, NormKernels, "eight floats at a time, rows split among threads"),
//   };
//
// where rms_norm_fast is a template over the kernels, which are one class template per instruction set:
// portable::NormKernels, avx2::NormKernels, ...
#include "step1_layers/core/cpu_features.h"
#include "step1_layers/core/variants.h"

#if defined(__x86_64__)
#define LADDER_SIMD_RUNGS(driver, kernels, text)                                                             \
  {.name = "portable", .idea = text, .run = driver<portable::kernels>},                                      \
      {.name = "avx2",                                                                                       \
       .idea = "the same in 256-bit registers with fused multiply-add",                                      \
       .min_arch = static_cast<int>(CpuIsa::avx2),                                                           \
       .run = driver<avx2::kernels>},                                                                        \
  {                                                                                                          \
    .name = "avx512", .idea = "the same in 512-bit registers", .min_arch = static_cast<int>(CpuIsa::avx512), \
    .run = driver<avx512::kernels>                                                                           \
  }
#else
#define LADDER_SIMD_RUNGS(driver, kernels, text) \
  { .name = "portable", .idea = text, .run = driver<portable::kernels> }
#endif

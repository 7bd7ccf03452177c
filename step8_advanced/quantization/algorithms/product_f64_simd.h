#pragma once
// The inner product of cholesky.h's blocks, in double: raw pointers, one thread, one function per instruction set.
#include <cstdint>

#include "step1_layers/core/cpu_features.h"

namespace ladder {

inline constexpr int64_t kPanelColumns = 16;

// clang-format off
LADDER_DECLARE_FOR_EACH_ISA(
// c [m, 16] += a [m, k] * b [k, 16], where b's rows are adjacent. An element's additions are in k's order whatever m is.
void add_product(const double* a, int64_t a_stride, const double* b, int64_t m, int64_t k, double* c,
                 int64_t c_stride);
)
// clang-format on

}  // namespace ladder

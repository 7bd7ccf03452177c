#pragma once
// What round_activations.h says, in registers: raw pointers, one row, one set of functions per instruction set. The same
// bits, and for every row that is not NaN the same values.
#include <cstdint>

#include "step1_layers/core/cpu_features.h"
#include "step1_layers/core/dtype.h"

namespace ladder {

struct RowRange {
  float min = 0, max = 0;  // with 0 among the numbers
  bool may_have_nan = false;
};

// clang-format off
LADDER_DECLARE_FOR_EACH_ISA(
// The row as floats.
void widen_row(const void* x, DType dtype, int64_t k, float* out);
RowRange range_of_row(const float* x, int64_t k);
// values = the code nearest to x, from min_code to max_code, less the zero point.
void round_to_integers(float* values, int64_t k, float scale, float zero, float min_code, float max_code);
void round_to_e4m3(float* values, int64_t k, float scale);
)
// clang-format on

}  // namespace ladder

#pragma once
// Kernel of the rungs for few rows of x: raw pointers, one thread, one set of functions per instruction set.
//
//   total += scale[lane's group] * (sum over i of x[i] * code[i]  +  zero[lane's group] * minus the sum over i of x[i])
//
// once per block (quantized_rows.h), in the lanes of one register, which are added at the end. The order of additions
// depends on k and the groups alone, not on how many rows x has.
#include <cstdint>

#include "step1_layers/core/cpu_features.h"
#include "step8_advanced/quantization/kernels/quantized_rows.h"

namespace ladder {

struct FewRowsX {
  int64_t m = 0;
  // [m][blocks][codes_per_lane][lanes], in the blocks' order, zeros beyond k. If the weight has zero points a block has one
  // register more: minus the sum of each lane's numbers.
  const float* values = nullptr;
  int64_t stride = 0;
  float* sums = nullptr;  // [m, n]
  int64_t sums_stride = 0;
};

// clang-format off
LADDER_DECLARE_FOR_EACH_ISA(
// x.sums[:, begin..end) = x times these rows of the weight.
void few_rows_sums(const QuantizedRows& weight, const FewRowsX& x, int64_t begin, int64_t end);
)
// clang-format on

}  // namespace ladder

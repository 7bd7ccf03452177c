#pragma once
// What was measured to be fastest. A table per architecture, made from the recorded
// benchmarks by tools/make_kernel_table.py, overrides the order of an operator's rows where it has something
// to say.
#include <cstdint>
#include <span>
#include <string_view>

#include "step1_layers/core/context.h"
#include "step1_layers/core/dtype.h"

namespace ladder {

struct MeasuredKernel {
  std::string_view op;
  int64_t n, k;  // of the weight
  int64_t rows;  // of x: up to so many
  std::string_view kernel;
};

// Empty where nothing was measured.
std::span<const MeasuredKernel> kernel_table(DeviceType device, int arch);

// The kernel of `op` for `rows` rows of x and a weight [n, k] on the context's device; empty where nothing
// was measured that comes near. The rule: the measured shape nearest to [n, k] (by the product of the two
// sides' ratios), if neither side differs by more than a factor of four; of it, the smallest number of rows
// measured that is not below `rows`. The two 16-bit types move the same bytes, so bf16's figures serve f16
// too.
std::string_view measured_kernel(const OpContext& ctx, std::string_view op, DType dtype, int64_t rows,
                                 int64_t n, int64_t k);

}  // namespace ladder

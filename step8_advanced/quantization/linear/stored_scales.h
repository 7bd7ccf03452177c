#pragma once
// Scales and zero points as checkpoints have them, one for each row and group in the end.
#include <cstdint>
#include <string_view>
#include <vector>

#include "step1_layers/linear/linear_method.h"
#include "step8_advanced/quantization/quantized_weight.h"
#include "step8_advanced/quantization/scheme.h"

namespace ladder {

// The scales' dimensions by args.strategy: one per part, [N, 1], [N, K / group_size], or a grid of blocks. All groups on
// every rank where any input feature may be in any of them (ActivationOrder::group).
std::vector<LinearDimension> scale_dimensions(const QuantizationArgs& args, const LinearShape& shape);

// Neighbouring input features of a rank that share a scale.
struct ColumnGroups {
  int64_t size = 0;    // all that the rank has where a row has one scale
  int64_t offset = 0;  // of the first, on the rank before

  int64_t count(int64_t features) const { return (features + offset + size - 1) / size; }
};
ColumnGroups column_groups(const QuantizationArgs& args, const LinearShape& shape);

// A tensor f32, u8 or i8 of these dimensions with each row's own copy: [n, groups].
Tensor expanded_to_rows(const Tensor& stored, const std::vector<LinearDimension>& dims,
                        const LinearShape& shape);

// Error naming `what` and the place: a scale that is not finite, is 0 or has a sign that it cannot have. Of integers it can have both:
// there is a code more below 0 than above, and AutoRound gives it to a group's largest weight, whose sign the scale takes.
enum class ScaleSign : uint8_t { positive, any };
void check_scales(const Tensor& scales, std::string_view what, ScaleSign sign = ScaleSign::positive);
// Error: E4M3's NaN.
void check_e4m3(const Tensor& codes, std::string_view what);

// [columns, rows] of f32 [rows, columns].
Tensor transposed(const Tensor& matrix);

// E4M3 as u8, the same memory.
Tensor as_bytes(const Tensor& e4m3);

}  // namespace ladder

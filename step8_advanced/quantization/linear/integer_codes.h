#pragma once
// Integers as files have them, made the codes of a QuantizedWeight.
#include <cstdint>
#include <optional>

#include "step1_layers/linear/linear_method.h"
#include "step8_advanced/quantization/linear/stored_scales.h"
#include "step8_advanced/quantization/quantized_weight.h"
#include "step8_advanced/quantization/scheme.h"

namespace ladder {

// Of a rank, after unpacking (numbers/packing.h): codes 0 to 2^b - 1, where 2^(b-1) stands for q = 0.
struct IntegerCodes {
  Tensor codes;   // u8 [n, k], rows may be strided
  Tensor zeros;   // u8 [n, groups], or undefined: 2^(b-1)
  Tensor scales;  // f32 [n, groups]
  // i32 [orders, k]: the group of each input feature, where the file says it (g_idx), for n / orders rows each, and `scales` has all of
  // the layer's groups; undefined: neighbours, from `groups.offset` on.
  Tensor group_of;
};

// Error: zeros of a symmetric scheme that are not 2^(b-1); group_of has a number outside of the groups, or a group has other than
// group_size members (the last one: what is left) where the rank has all features, more where it has some of them.
QuantizedWeight integer_weight(const IntegerCodes& integers, const QuantizationArgs& args,
                               const LinearShape& shape);

}  // namespace ladder

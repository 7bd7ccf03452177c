#pragma once
// Task 8.1: a weight in f32 becomes codes: each number the nearest of its grid, whatever the others do ("round to
// nearest", RTN). The algorithms (algorithms/) choose codes that make up for each other's errors; they start from the same grids.
#include <string_view>

#include "step8_advanced/quantization/numbers/weight_grids.h"
#include "step8_advanced/quantization/quantized_weight.h"

namespace ladder {

// weight [n, k] f32, errors and global_scale as make_weight_grids has them.
QuantizedWeight quantize_weight(const Tensor& weight, const QuantizationArgs& args, std::string_view name,
                                float global_scale = 0);
// On these grids, which were made of this weight or of another of its shape.
QuantizedWeight quantize_weight(const Tensor& weight, const QuantizationArgs& args, const WeightGrids& grids);

// The form in memory of codes that are chosen already: f32 [n, k], as nearest_code() gives them (signed whole numbers, or the
// values of small floats).
QuantizedWeight weight_of_codes(const Tensor& codes, const QuantizationArgs& args, const WeightGrids& grids);

}  // namespace ladder

#pragma once
// x as a scheme rounds it at run time, a row at a time.
//
//   token, dynamic    one grid per row, made of the row's own numbers
//   tensor, static    the grid {input_scale, 0}, found when the model was calibrated
//   group, dynamic    one grid per group_size neighbours (MX)
//
// "tensor, dynamic" is not here: its scale depends on all rows, so a token's result would depend on its batch.
#include <cstdint>
#include <optional>

#include "step8_advanced/quantization/scheme.h"

namespace ladder {

// Error: a scheme that is not served, or a static scale that is not finite and above 0.
void check_activations(const QuantizationArgs& args, float input_scale);

// Whether a GPU's rungs round so (prepare_x_cuda.h): one grid for a row, its scale in f32, codes of integers or E4M3.
bool are_rounded_on_a_gpu(const QuantizationArgs& args);

// values[k] * the scale that is returned = x'[k]. With one grid for the row, values are codes less the zero point: whole
// numbers of at most 9 bits, or floats of 8 bits and less; with groups they are x' itself and the scale is 1, as without
// args. A row with a
// NaN, and with dynamic scales one with an infinity: the scale is NaN and values are 0. values may be x.
float round_activations(const float* x, int64_t k, const std::optional<QuantizationArgs>& args,
                        float input_scale, float* values);

}  // namespace ladder

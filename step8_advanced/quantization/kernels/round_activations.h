#pragma once
// x as a scheme rounds it at run time, a row at a time.
//
//   token, dynamic    one grid per row, made of the row's own numbers
//   tensor, static    the grid {input_scale, 0}, found when the model was calibrated
//   group, dynamic    one grid per group_size neighbours: MX, the blocks of FP8, and NVFP4, whose grids' scales are E4M3 numbers over
//                     one G, which was found when the model was calibrated
//
// "tensor, dynamic" is not here: its scale depends on all rows, so a token's result would depend on its batch.
#include <cstdint>
#include <optional>

#include "step8_advanced/quantization/scheme.h"

namespace ladder {

// Whether a checkpoint has a number for the scheme: a static scale, or NVFP4's G.
bool have_stored_scale(const QuantizationArgs& args);

// Error: a scheme that is not served, or a stored scale that is not finite and above 0.
void check_activations(const QuantizationArgs& args, float input_scale);

// Whether a GPU's rungs round so (prepare_x_cuda.h): one grid for a row, its scale in f32, codes of integers or E4M3; or a grid for
// each 16 neighbours or more, its scale in f32, a power of two, or NVFP4's.
bool are_rounded_on_a_gpu(const QuantizationArgs& args);

// values[k] * the scale that is returned = x'[k]. With one grid for the row, values are codes less the zero point: whole
// numbers of at most 9 bits, or floats of 8 bits and less; with groups they are x' itself and the scale is 1, as without
// args. A row with a
// NaN, and with dynamic scales one with an infinity: the scale is NaN and values are 0. values may be x.
float round_activations(const float* x, int64_t k, const std::optional<QuantizationArgs>& args,
                        float input_scale, float* values);

}  // namespace ladder

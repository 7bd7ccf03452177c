#pragma once
// Task 8.1: the numbers that a group of weights may take, and rounding to them.
//
//   integers   w = (q - zero) * scale          q in [-2^(b-1), 2^(b-1) - 1]
//   floats     w = q * scale                   q one of E4M3's or E2M1's values
//
// The scale of a symmetric grid, by compressed-tensors' convention: absmax / ((2^b - 1) / 2), so that the range
// [-absmax, absmax] is as long as the codes' (AWQ and SmoothQuant divide by 2^(b-1) - 1 instead and leave one code
// unused; GPTQ's is this one). Asymmetric: (max - min) / (2^b - 1), with 0 made part of the range, which it must be: many
// weights are 0. Floats: absmax / the largest value (448, 6).
#include <cstdint>
#include <span>

#include "step8_advanced/quantization/scheme.h"

namespace ladder {

// Of one group. `zero` is a whole number, 0 where the scheme is symmetric.
struct Grid {
  float scale = 1;
  float zero = 0;
};

// The grid for numbers between min and max, its scale rounded to what args.scale_format can hold: whoever reads the file has no
// other. All numbers 0: the smallest scale above 0 that the format has and that does no harm. `global_scale` is
// NVFP4's G: the scale is e4m3(G * s) / G.
Grid make_grid(float min, float max, const QuantizationArgs& args, float global_scale = 1);
// Of the numbers of a group.
Grid make_grid(std::span<const float> numbers, const QuantizationArgs& args, float global_scale = 1);
// NVFP4's G for a tensor of this largest absolute value: 448 * 6 / absmax; 1 where that is 0.
float nvfp4_global_scale(float absmax);

// The code nearest to x, half to even, saturated at the ends; of floats the value that the code stands for. NaN has none:
// the result is NaN for floats and the zero point for integers.
float nearest_code(float x, const Grid& grid, const QuantizationArgs& args);
// What a code stands for.
inline float value_of(float code, const Grid& grid) {
  return (code - grid.zero) * grid.scale;
}
// x as the grid has it.
inline float round_to_grid(float x, const Grid& grid, const QuantizationArgs& args) {
  return value_of(nearest_code(x, grid, args), grid);
}

}  // namespace ladder

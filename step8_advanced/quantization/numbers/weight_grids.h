#pragma once
// Task 8.1: the grids of a whole weight [n, k]: which numbers share one, and what it is.
//
//   tensor    all                                  group    group_size neighbours of a row
//   channel   a row                                block    block_rows rows of block_columns columns; the last ones are smaller
//
// Written out they are one per row and group of columns, as quantized_weight.h has them.
#include <cstdint>
#include <string_view>

#include "step1_layers/core/tensor.h"
#include "step8_advanced/quantization/numbers/grid.h"

namespace ladder {

struct WeightGrids {
  Tensor scales;           // f32 [n, groups]
  Tensor zeros;            // f32 [n, groups], whole numbers (Grid::zero); undefined: symmetric
  int64_t group_size = 0;  // columns that share a grid; k where a row has one

  Grid at(int64_t row, int64_t column) const;
};

// Of a weight's smallest and largest numbers. weight: f32 [n, k], contiguous, on the CPU. `global_scale` is NVFP4's G, which the
// parts of a merged linear share; 0: of this weight alone. Error, beginning with `name`: NaN or infinity in the weight; a
// group that does not divide k; bits that do not exist (integers 2 to 8, floats 4 and 8); zero points of floats; `token`.
WeightGrids make_weight_grids(const Tensor& weight, const QuantizationArgs& args, std::string_view name,
                              float global_scale = 0);

// The same, each made smaller as long as that makes the error of its numbers smaller: GPTQ's "mse". The range is cut to
// 1, 0.99, ... 0.21 of what it is at both ends, and the first that has the least sum of |error|^2.4 stays.
WeightGrids make_clipped_weight_grids(const Tensor& weight, const QuantizationArgs& args,
                                      std::string_view name, float global_scale = 0);
// Of one grid's numbers.
Grid make_clipped_grid(std::span<const float> numbers, const QuantizationArgs& args, float global_scale = 1);

// The largest absolute value, of which nvfp4_global_scale makes G.
float largest_absolute(const Tensor& weight);

}  // namespace ladder

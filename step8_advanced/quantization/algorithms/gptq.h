#pragma once
// Task 8.3: GPTQ (Frantar et al., 2022, arXiv 2210.17323): round a layer's weight so that its outputs on calibration's
// activations, not its weights, stay near.
//
//   minimise tr(E H E^T), E = Q - W, over the matrices Q on the grid        H: hessian.h
//
//   columns that calibration never used (H[i][i] = 0): H[i][i] = 1, w[:, i] = 0
//   order   = columns by falling H[i][i], or as they are                    act-order
//   H      += 0.01 * mean(diagonal of H) * I                                damping
//   U       = upper Cholesky factor of H^-1
//   grids   = of whole rows, or of groups before the loop; or of each group when the loop reaches it, from the weights as
//             they are by then
//   round column by column, letting the columns to come make up for it      round_columns.h
//
// Act-order (QuantizationArgs::actorder): `none`; `weight`: groups are neighbours as stored and their grids are
// made before the loop, so only the order of rounding differs ("static groups"); `group`: groups are formed in the
// order of rounding, QuantizedWeight::columns and g_idx say which column is in which. Columns that matter most are
// rounded first, while there are many others to make up for them.
//
// Time: n k^2 multiplications for the loop and 2 k^3 / 3 operations for U. Memory: 16 k^2 bytes (H, and U in double).
#include <cstdint>
#include <string_view>

#include "step1_layers/core/tensor.h"
#include "step8_advanced/quantization/quantized_weight.h"
#include "step8_advanced/quantization/scheme.h"

namespace ladder {

struct GptqOptions {
  double damping = 0.01;   // of the mean of H's diagonal
  double max_damping = 1;  // as far as it is raised, times 10 a time, where H is not positive definite
  int64_t block_size = 128;
  bool clipped_grids =
      false;  // make_clipped_weight_grids instead of make_weight_grids (the original's "mse")
  // SparseGPT in the same loop (sparse.h). Act-order `weight` then moves fours of neighbours, by the sum of their H[i][i].
  bool two_of_four = false;
  bool keep_zeros = false;  // what is 0 in the weight, which was pruned before, stays 0
  float global_scale = 0;   // NVFP4's G, where layers share one; 0: of this weight
};

struct GptqResult {
  QuantizedWeight weight;
  // Act-order `group` only: i32 [k], the group of each input feature, as files keep it. weight.columns lists the
  // features by group.
  Tensor g_idx;
  double error = 0;          // layer_error() of the result
  double damping = 0;        // that it took: above the option's where H was not positive definite with that
  int64_t dead_columns = 0;  // whose inputs were always 0
};

// weight [n, k] f32, hessian [k, k] f32 (Hessian::matrix()), both left as they are. Errors name the layer: NaN in
// either; a group that does not divide k; act-order `group` without groups; an H that is not positive definite with
// max_damping either; two_of_four with act-order `group`, or groups or k that are no multiple of 4. There is no falling
// back to rounding to nearest: whoever wants that calls quantize_weight().
GptqResult gptq(const Tensor& weight, const Tensor& hessian, const QuantizationArgs& args,
                std::string_view name, const GptqOptions& options = {});

}  // namespace ladder

#pragma once
// Task 8.3: SmoothQuant (Xiao et al., 2022, arXiv 2211.10438): activations have outliers in a few features, always
// the same, which take all the codes of a scale that others share; weights have none. So part of the range moves
// from x to W before both are rounded:
//
//   for each input feature i of the linears that a norm feeds:
//     s[i] = max|x_i|^alpha / max|w_i|^(1 - alpha)       over all rows of calibration; over all rows of these linears
//   norm's gain / s, columns of the linears * s          fold_scales.h: no output changes
//
//            x                 W                x / s              W s
//      | 1  1  64  1 |   | 1  1  1  1 |    | 1  1  8  1 |    | 1  1  8  1 |        alpha = 0.5
//
// alpha 0 leaves x's range as W's columns make it, 1 makes all features of x as large as each other. Inputs of o
// and down are not a norm's output and stay as they are, so outliers there stay too.
#include <span>
#include <string_view>

#include "step1_layers/core/tensor.h"

namespace ladder {

// f32 [k]. max_abs_x [k]: Hessian::max_abs(); linears [n, k] each: all that take x. Both maxima and the result are
// at least 1e-5. Errors name the layer: alpha outside [0, 1], shapes, a maximum that is not a finite
// number, with its `feature 5`.
Tensor smoothquant_scales(const Tensor& max_abs_x, std::span<const Tensor> linears, double alpha,
                          std::string_view name);

}  // namespace ladder

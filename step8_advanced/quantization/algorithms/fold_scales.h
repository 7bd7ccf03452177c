#pragma once
// Task 8.3: a factor s[i] per feature moves from what makes x into the linears that take it, and no output changes:
//
//   x' = x / s,  W' = W diag(s)                                      W' x' = W x
//
// The division costs nothing, since it is folded into whatever made x: a norm's gain, or the rows of a linear (v
// before o, up before down, where the shapes are equal). Every linear that takes x has to be among `linears`: q, k
// and v; gate and up; of a mixture of experts the router and all experts. One that is forgotten sees x / s and says
// nothing.
//
// All tensors are f32 on the CPU and are changed in their places; scales [k] are finite and above 0. With powers of
// two nothing is rounded, and outputs have the same bits.
#include <span>
#include <string_view>

#include "step1_layers/core/tensor.h"

namespace ladder {

// What x is a norm of: y = normed * gain + bias, or normed * (1 + gain) (Gemma's) where gain_plus_one, whose gain
// is then not divided but 1 + gain is.
struct NormBefore {
  Tensor gain;       // [k]
  Tensor bias = {};  // [k] or undefined
  bool gain_plus_one = false;
};

// Errors name the layer: linears that do not have k columns, or none at all; scales that are not above 0, with
// their `feature 5`.
void fold_scales(const NormBefore& norm, std::span<const Tensor> linears, const Tensor& scales,
                 std::string_view name);

// What x is the output of: a linear with k rows. (Behind an activation only where that multiplies: up in act(gate)
// * up.)
struct LinearBefore {
  Tensor weight;     // [k, its inputs]
  Tensor bias = {};  // [k] or undefined
};
void fold_scales(const LinearBefore& before, std::span<const Tensor> linears, const Tensor& scales,
                 std::string_view name);

}  // namespace ladder

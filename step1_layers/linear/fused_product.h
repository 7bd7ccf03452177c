#pragma once
// A linear's product together with the norm before it and the epilogue after it, in one kernel, of few rows: what a
// composite (step2_model/decoder/composites.h) asks of a linear, whichever method stores its weight.
//
//   x' = x, or rms_norm(x)
//   y  = x' * weight^T (+ bias)
//   out = y                                                  store
//   out = out + round(y)                                     add: the residual stream
//   out[:, j] = silu(round(y[:, j])) * round(y[:, n/2 + j])  silu_and_mul: gate and up side by side
#include <cstdint>

#include "step1_layers/core/tensor.h"

namespace ladder {

enum class Epilogue : uint8_t { store, add, silu_and_mul };

struct FusedProduct {
  Tensor x;                 // [m, k] bf16 or f16
  Tensor norm_weight = {};  // [k]: x is normed first; undefined: it is not
  double eps = 0;
  Epilogue epilogue = Epilogue::store;
  Tensor out = {};  // [m, n], silu_and_mul: [m, n / 2]; x's dtype, store: or f32
};

}  // namespace ladder

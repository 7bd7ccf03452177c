#pragma once
// A matrix product for few rows together with the norm before it and the epilogue after it, in one kernel
// (sm_90).
//
//   x' = x, or rms_norm(x)                                   rounded to x's dtype, as the operator does
//   y  = x' * weight^T (+ bias)
//   out = y                                                  store
//   out = out + round(y)                                     add: the residual stream
//   out[:, j] = silu(round(y[:, j])) * round(y[:, n/2 + j])  silu_and_mul: gate and up side by side
#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"

namespace ladder {

enum class Epilogue : uint8_t { store, add, silu_and_mul };

struct RowsStreamArgs {
  Tensor x;            // [m, k] bf16 or f16
  Tensor weight;       // [n, k]
  Tensor bias;         // [n], or undefined
  Tensor norm_weight;  // [k]: x is normed first; undefined: it is not
  double eps = 0;
  Epilogue epilogue = Epilogue::store;
  Tensor out;  // [m, n], silu_and_mul: [m, n / 2]; x's dtype, store: or f32
};

void rows_stream(const OpContext& ctx, const RowsStreamArgs& args);
bool rows_stream_takes(const RowsStreamArgs& args);

}  // namespace ladder

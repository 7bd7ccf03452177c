#pragma once
// Columns of x in the order of a weight's stored columns (QuantizedWeight::columns).
#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"

namespace ladder {

// out[i][c] = x[i][columns[c]], 0 where that is -1. x [m, features], columns i32 [k], out [m, k] contiguous, x's dtype; all on the
// context's device.
void gather_columns(const OpContext& ctx, const Tensor& x, const Tensor& columns, const Tensor& out);

}  // namespace ladder

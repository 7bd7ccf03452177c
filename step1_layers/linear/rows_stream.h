#pragma once
// The fused product (fused_product.h) of a dense weight, for few rows (sm_90). A normed x is rounded to its dtype, as
// the operator does.
#include "step1_layers/core/context.h"
#include "step1_layers/linear/fused_product.h"

namespace ladder {

struct RowsStreamArgs : FusedProduct {
  Tensor weight;  // [n, k]
  Tensor bias;    // [n], or undefined
};

void rows_stream(const OpContext& ctx, const RowsStreamArgs& args);
bool rows_stream_takes(const RowsStreamArgs& args);

}  // namespace ladder

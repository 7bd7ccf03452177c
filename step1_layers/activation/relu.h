#pragma once
// ReLU, max(x, 0): the activation of OPT.
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

struct ReluArgs {
  Tensor x;    // [tokens, width]
  Tensor out;  // [tokens, width], same dtype; may be x itself
};

std::span<const Variant<ReluArgs>> relu_variants();

// f32, bf16 or f16; NaN stays NaN. Rows may be strided, elements of a row are adjacent. Error: shapes or dtypes that do
// not fit together.
void relu(const OpContext& ctx, const Tensor& x, const Tensor& out);

}  // namespace ladder

#pragma once
// Task 1.8: greedy sampling.
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

struct ArgmaxArgs {
  Tensor logits;  // f32 [rows, vocab]
  Tensor ids;     // i32 [rows]
};

std::span<const Variant<ArgmaxArgs>> argmax_variants();

// The id of each row's largest logit, the lowest id among equals. A row that holds a NaN, and one of nothing
// but -inf, gives kInvalidToken (invalid_token.h). Error: shapes or dtypes that do not fit together.
void argmax(const OpContext& ctx, const Tensor& logits, const Tensor& ids);

}  // namespace ladder

#pragma once
// Task 1.8: softmax and log-softmax of logits, over rows of any length.
//
// Both subtract the row's largest value first, so that no e^x overflows. Natural logarithms. A logit of -inf
// (a masked token) has probability exactly 0 and log probability -inf.
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

struct SoftmaxArgs {
  Tensor logits;  // f32 [rows, vocab]; a row has at least one value above -inf; one with a NaN gives NaN
  Tensor out;     // f32 [rows, vocab]; may be logits itself
};

std::span<const Variant<SoftmaxArgs>> softmax_variants();
std::span<const Variant<SoftmaxArgs>> log_softmax_variants();

// Error: shapes or dtypes that do not fit together.
void softmax(const OpContext& ctx, const Tensor& logits, const Tensor& out);
void log_softmax(const OpContext& ctx, const Tensor& logits, const Tensor& out);

}  // namespace ladder

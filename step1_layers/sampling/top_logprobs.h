#pragma once
// Task 1.8: the log probability of a given token and of the most likely ones, without writing a whole row of
// log probabilities.
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

struct TopLogprobsArgs {
  Tensor logits;           // f32 [rows, vocab]: raw, before penalties and temperature
  Tensor chosen;           // i32 [rows], each in [0, vocab)
  Tensor chosen_logprobs;  // f32 [rows]: log softmax(logits)[chosen]
  Tensor top_ids;          // i32 [rows, k], most likely first, equals by id; undefined: k = 0
  Tensor top_logprobs;     // f32 [rows, k]
};

std::span<const Variant<TopLogprobsArgs>> top_logprobs_variants();

// Natural logarithms. Columns of top_ids past the vocabulary are -1 with -inf. Rows that want fewer than k
// take the first of their row. Error: shapes or dtypes that do not fit together, a chosen id outside the
// vocabulary.
void top_logprobs(const OpContext& ctx, const Tensor& logits, const Tensor& chosen,
                  const Tensor& chosen_logprobs, const Tensor& top_ids = {}, const Tensor& top_logprobs = {});

}  // namespace ladder

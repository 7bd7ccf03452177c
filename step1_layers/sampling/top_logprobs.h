#pragma once
// Task 1.8: the log probability of given tokens and of the most likely ones, without writing a whole row of
// log probabilities.
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

struct TopLogprobsArgs {
  Tensor logits;                  // f32 [rows, vocab]: raw, before penalties and temperature
  Tensor chosen;                  // i32 [rows], each in [0, vocab), or kInvalidToken
  Tensor chosen_logprobs;         // f32 [rows]: log softmax(logits)[chosen]
  Tensor top_ids;                 // i32 [rows, k], most likely first, equals by id; undefined: k = 0
  Tensor top_logprobs;            // f32 [rows, k]
  Tensor selected_ids = {};       // i32 [rows, s]: further given tokens, or kInvalidToken; undefined: s = 0
  Tensor selected_logprobs = {};  // f32 [rows, s]: log softmax(logits)[selected_ids]

  int64_t num_top() const { return top_ids.defined() ? top_ids.dim(1) : 0; }
  int64_t num_selected() const { return selected_ids.defined() ? selected_ids.dim(1) : 0; }
};

std::span<const Variant<TopLogprobsArgs>> top_logprobs_variants();

// Natural logarithms. Columns of top_ids past the vocabulary are -1 with -inf. Rows that want fewer than k
// take the first of their row. The log probability of kInvalidToken, and of every token of a row that holds a
// NaN, is NaN. Error: shapes or dtypes that do not fit together, another id outside the vocabulary; on a GPU,
// whose ids the host does not read, the answer for such an id is NaN.
void top_logprobs(const OpContext& ctx, const TopLogprobsArgs& args);

}  // namespace ladder

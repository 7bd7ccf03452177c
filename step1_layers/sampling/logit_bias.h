#pragma once
// Task 1.8: biases on single tokens, in place on the logits: logit_bias adds a number to a token's logit, and
// a bias of -inf forbids the token (min_tokens, bad_words).
//
//   logit += bias        bias of -inf: logit = -inf, also where it was +inf or NaN
//
// The entries come as one list for the whole batch, as in penalties.h: row r owns entries
// [row_start[r], row_start[r + 1]). The cost follows the entries, not the vocabulary.
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

struct ApplyLogitBiasArgs {
  Tensor logits;     // f32 [rows, vocab], updated in place
  Tensor row_start;  // i32 [rows + 1]
  Tensor token_ids;  // i32 [entries]: in a row every id at most once, each in [0, vocab)
  Tensor biases;     // f32 [entries]: finite or -inf
};

std::span<const Variant<ApplyLogitBiasArgs>> apply_logit_bias_variants();

// Error: shapes or dtypes that do not fit together, a token id outside the vocabulary; on a GPU, whose ids
// the host does not read, such an entry is passed over.
void apply_logit_bias(const OpContext& ctx, const ApplyLogitBiasArgs& args);

}  // namespace ladder

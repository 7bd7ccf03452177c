#pragma once
// Task 1.8: only the tokens of a bitmask may be drawn, in place on the logits: what allowed_token_ids and a
// grammar ask for.
//
//   bit t % 32 of word t / 32 of a mask is set    token t is allowed
//   it is not                                     its logit becomes -inf
//
// This is the layout of xgrammar and llguidance: ceil(vocab / 32) words of 32 bits per mask, so that a mask of
// 151,936 tokens is 19 KB. Rows name their mask by its number, so requests that allow the same tokens share
// one; bits past the vocabulary are not looked at.
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

struct ApplyTokenBitmaskArgs {
  Tensor logits;      // f32 [rows, vocab], updated in place
  Tensor mask_index;  // i32 [rows]: a row of `bitmask`; -1: the row is left as it is
  Tensor bitmask;     // i32 [masks, ceil(vocab / 32)]
};

constexpr int64_t bitmask_words(int64_t vocab) {
  return (vocab + 31) / 32;
}

std::span<const Variant<ApplyTokenBitmaskArgs>> apply_token_bitmask_variants();

// Error: shapes or dtypes that do not fit together, a mask_index past the masks; on a GPU, whose numbers the
// host does not read, such a row is left as it is.
void apply_token_bitmask(const OpContext& ctx, const ApplyTokenBitmaskArgs& args);

}  // namespace ladder

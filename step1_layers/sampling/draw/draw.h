#pragma once
// Task 1.8: from logits to tokens in one call: temperature, min-p, top-k, top-p (logits_filters.h), then
// noise and the largest (sample.h), in this order, each row with its own values. A filter for which no row
// asks (its tensor is undefined) is not run.
//
// The sampler pays for every pass over the logits: 128 rows of 151,936 are 78 MB, and the sequence of
// operators reads them some ten times. Which tokens survive the filters is decided by a few hundred of them,
// and so is the winner; the higher rungs look for these. They differ in where they divide by the temperature:
//
//   sequence                     apply_temperature writes every quotient back
//   fused, no filter (plain)     the search multiplies by the inverse, which may be off in the last place; only
//                                the few tokens that may win are divided exactly
//   fused, small top_k (few)     the largest value of each part, and the tokens of the parts that are looked at
//                                again: a quotient keeps the order
//   fused, other filters (search)   every logit, when it is loaded into shared memory (load_row)
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

struct DrawArgs {
  Tensor logits;        // f32 [rows, vocab], overwritten
  Tensor temperature;   // f32 [rows]; below kMinTemperature: greedy, whatever the filters' values are
  Tensor min_p;         // f32 [rows]; <= 0: off. Undefined: no row asks
  Tensor top_k;         // i32 [rows]; <= 0 or >= vocab: off. Undefined: no row asks
  Tensor top_p;         // f32 [rows]; >= 1: off. Undefined: no row asks
  Tensor seeds;         // i64 [rows]: the 64 bits of the request's seed
  Tensor output_index;  // i64 [rows]: how many tokens the request has sampled before this one
  Tensor ids;  // i32 [rows]; of +inf the first; kInvalidToken (invalid_token.h) where a logit is NaN,
               // or all are -inf
};

std::span<const Variant<DrawArgs>> draw_variants();

// Scratch comes from ctx.arena. Nothing on a device is read by the host, so a call may be captured in a
// graph. Error: shapes or dtypes that do not fit together.
void draw(const OpContext& ctx, const DrawArgs& args);

}  // namespace ladder

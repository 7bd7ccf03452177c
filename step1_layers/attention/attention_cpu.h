#pragma once
// The clear rungs of attention.h and paged_attention.h. Their arguments have been checked. Scores, softmax and
// sums are in double, rounded once; scratch for the scores of one row comes from ctx.arena.
#include "step1_layers/attention/attention.h"
#include "step1_layers/attention/paged_attention.h"

namespace ladder {

void causal_attention_loop(const OpContext& ctx, const CausalAttentionArgs& args);
void paged_attention_loop(const OpContext& ctx, const PagedAttentionArgs& args);
void paged_attention_values_of_codes(const OpContext& ctx, const PagedAttentionArgs& args);

}  // namespace ladder

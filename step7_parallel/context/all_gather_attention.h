#pragma once
// Every rank gets the keys and values of all (Llama 3, arXiv 2407.21783, 3.3.2): nothing to merge and nothing to plan, but
// room for all keys of a layer, and no rank begins before all of them are there.
#include "step7_parallel/context/context_attention.h"

namespace ladder {

// As context_attention.h says. A rank sends its keys and values to all others: 2 (ranks - 1) * the most keys that a rank
// has * kv_heads * dim values, as the shorter shares are filled up. Takes scratch from ctx.arena.
void all_gather_attention(const OpContext& ctx, const ContextAttentionArgs& args);

}  // namespace ladder

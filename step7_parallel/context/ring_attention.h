#pragma once
// The ring (Liu et al., 2023, arXiv 2310.01889) in zigzag order.
//
// Each rank keeps its queries. Its keys and values go round: in every step they go one rank further, while the rank attends
// to those that it has in hand and merges the result into what it has (lse_merge.h). In step i rank r has those of rank
// r - i. What it computes is never masked but in the first step:
//
//                        early queries see                late queries see
//   its own              up to themselves                 up to themselves
//   an earlier rank's    the early chunk                  the early chunk; the late one comes after them all
//   a later rank's       nothing                          both chunks
//
// (and the cached keys always) which is about half of all pairs in every step: no rank waits for another.
#include "step7_parallel/context/context_attention.h"

namespace ladder {

// As context_attention.h says. A rank sends 2 (ranks - 1) / ranks * keys of all ranks * kv_heads * dim values.
// Equal to attention on one rank but for the order of f32 sums and, in bf16 and f16, that each part's result is rounded
// before it is merged. Takes scratch from ctx.arena.
void ring_attention(const OpContext& ctx, const ContextAttentionArgs& args);

}  // namespace ladder

#pragma once
// Heads instead of tokens (DeepSpeed-Ulysses: Jacobs et al., 2023, arXiv 2309.14509): an all-to-all gives each rank all
// tokens of some of the heads, where attention is as on one rank, and another one brings the results back. There are no more
// ranks in it than KV heads. For more, ranks in two dimensions (USP: Fang and Zhao, 2024, arXiv 2405.07719): groups of
// `inner` ranks exchange heads, and each group is one rank of a ring.
//
//   8 ranks, 4 inner       ring of the groups' ranks i
//     0 1 2 3   heads         0 -> 4 -> 0,  1 -> 5 -> 1, ...
//     4 5 6 7   heads
#include "step7_parallel/context/context_attention.h"

namespace ladder {

// Why ranks cannot exchange heads; empty: they can. KV heads that are divided among more ranks than there are would have
// to be sent several times, which this does not do.
std::string ulysses_obstacle(int64_t kv_heads, int ranks);

// Both as context_attention.h says, and takes scratch from ctx.arena.
// A rank sends (ranks - 1) / ranks of its rows of q and out and of its keys and values.
// Error besides: ulysses_obstacle().
void ulysses_attention(const OpContext& ctx, const ContextAttentionArgs& args);
// args.inner and args.outer are the rank's groups. Error besides: they are not there; ulysses_obstacle(); rank r is not rank
// r % inner of its inner group and r / inner of its outer one.
void ulysses_ring_attention(const OpContext& ctx, const ContextAttentionArgs& args);

}  // namespace ladder

#pragma once
// Causal attention of one prompt whose tokens lie on several ranks: the ring (Liu et al., 2023, arXiv 2310.01889) in
// zigzag order.
//
// Each rank keeps its queries. Its keys and values go round: in every step they go one rank further, and a rank attends to
// those that it has in hand and merges the result into what it has (lse_merge.h). In step i rank r has those of rank
// r - i. What it computes is never masked but in the first step:
//
//   its own              causal
//   an earlier rank's    all queries, and of the keys the early chunk alone: the late one comes after them all
//   a later rank's       the late queries alone, and all keys
//
// which is about half of all pairs in every step: no rank waits for another.
#include <cstdint>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/distributed/communicator.h"

namespace ladder {

struct RingAttentionArgs {
  int64_t length = 0;  // of the whole prompt; rows below are zigzag_share(length, ranks, rank)'s
  Tensor q;            // [rows, heads, dim]
  Tensor k, v;         // [rows, kv_heads, dim], heads % kv_heads == 0
  double scale = 1.0;
  Tensor out;  // [rows, heads, dim]
};

// Every tensor is f32, on the CPU, contiguous. Each rank sends 2 (ranks - 1) / ranks * length * kv_heads * dim values.
// Equal to attention on one rank but for the order of f32 sums. Takes scratch from ctx.arena.
// Error: rows that are not the share's, shapes that do not fit together, a tensor of another dtype or on a GPU.
void ring_attention(const OpContext& ctx, Communicator& group, const RingAttentionArgs& args);

}  // namespace ladder

#pragma once
// Task 1.5: each rank's logits become rank 0's logits of all rows.
#include "step1_layers/embedding/embedding.h"

namespace ladder {

// mine [rows, shard.rows] f32 of each rank, the padding of the last ones included; logits [rows, shard.vocab_size] f32 of rank 0
// (elsewhere not looked at). Scratch from ctx.arena.
void gather_logits(const OpContext& ctx, const VocabShard& shard, const Tensor& mine, const Tensor& logits);

}  // namespace ladder

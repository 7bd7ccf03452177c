#include "step2_model/decoder/linear_head.h"

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"
#include "step1_layers/embedding/gather_logits.h"

namespace ladder {
namespace {

LinearShards head_shards(const VocabShard& shard, int64_t width) {
  LADDER_CHECK(shard.owned > 0, "lm_head: a vocabulary of {} leaves a rank without a row", shard.vocab_size);
  return {.in = {width, 0, width}, .out = {{shard.vocab_size, shard.begin, shard.owned}}};
}

}  // namespace

LinearHead::LinearHead(const OpContext& ctx, int64_t vocab_size, int64_t width, const LinearOptions& options)
    : shard_(vocab_shard(ctx, vocab_size)), linear_(ctx, "lm_head", head_shards(shard_, width), options) {}

void LinearHead::forward(const OpContext& ctx, const Tensor& hidden, const Tensor& logits) const {
  if (tp_group(ctx).size() == 1) return linear_.forward(ctx, hidden, logits);
  const int64_t rows = hidden.dim(0);
  if (rows == 0) return;
  LADDER_CHECK(ctx.arena != nullptr, "lm_head: several ranks need scratch memory in the context");
  ArenaScope scope(*ctx.arena);
  const Tensor own = ctx.arena->take({rows, shard_.owned}, DType::f32);
  const Tensor padded = ctx.arena->take({rows, shard_.rows}, DType::f32);
  linear_.forward(ctx, hidden, own);
  padded.narrow(1, 0, shard_.owned).copy_from(own, ctx.stream);
  gather_logits(ctx, shard_, padded, logits);
}

}  // namespace ladder

#include "step1_layers/embedding/embedding.h"

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"
#include "step1_layers/embedding/embedding_cpu.h"
#include "step1_layers/embedding/gather_logits.h"
#include "step1_layers/linear/load_shard.h"
#include "step1_layers/linear/matmul.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/embedding/embedding_cuda.h"
#endif

namespace ladder {

namespace {

// The padding rows stay zero.
Parameter vocab_matrix(const OpContext& ctx, const std::string& name, const VocabShard& shard,
                       int64_t hidden_size, DType dtype) {
  Parameter parameter;
  parameter.name = name + ".weight";
  parameter.tensor = Tensor::empty({shard.rows, hidden_size}, dtype, ctx.device);
  parameter.tensor.narrow(0, shard.owned, shard.rows - shard.owned).fill_bytes(0);
  parameter.load_part = [what = parameter.name, tensor = parameter.tensor, shard, hidden_size](
                            const Tensor& checkpoint, int) {
    load_shard(what, checkpoint,
               {.full = {shard.vocab_size, hidden_size},
                .begin = {shard.begin, 0},
                .size = {shard.owned, hidden_size}},
               tensor.rows(shard.owned));
  };
  return parameter;
}

Parameter vocab_bias(const OpContext& ctx, const std::string& name, const VocabShard& shard, DType dtype) {
  Parameter parameter;
  parameter.name = name + ".bias";
  parameter.tensor = Tensor::empty({shard.rows}, dtype, ctx.device);
  parameter.tensor.fill_bytes(0);
  parameter.load_part = [what = parameter.name, tensor = parameter.tensor, shard](const Tensor& checkpoint,
                                                                                  int) {
    load_shard(what, checkpoint, {.full = {shard.vocab_size}, .begin = {shard.begin}, .size = {shard.owned}},
               tensor.rows(shard.owned));
  };
  return parameter;
}

}  // namespace

std::span<const Variant<EmbeddingArgs>> embedding_variants() {
  static const Variant<EmbeddingArgs> table[] = {
      {.name = "loop", .idea = "element by element", .run = embedding_loop},
      {.name = "copy", .idea = "whole rows by memcpy, threads over tokens", .run = embedding_copy},
#ifdef LADDER_HAS_CUDA
      {.name = "naive", .device = DeviceType::cuda, .idea = "an element per thread", .run = embedding_cuda},
      {.name = "vectorized",
       .device = DeviceType::cuda,
       .idea = "sixteen bytes per access",
       .supports = embedding_is_packed,
       .run = embedding_cuda_packed},
#endif
  };
  return table;
}

// >>> task 1.5: split the vocabulary, and gather the logits
VocabShard vocab_shard(const OpContext& ctx, int64_t vocab_size) {
  Communicator& tp = tp_group(ctx);
  VocabShard shard{.vocab_size = vocab_size};
  shard.rows = (vocab_size + tp.size() - 1) / tp.size();
  shard.begin = std::min(tp.rank() * shard.rows, vocab_size);
  shard.owned = std::min(shard.rows, vocab_size - shard.begin);
  return shard;
}

void VocabParallelEmbedding::forward(const OpContext& ctx, const Tensor& ids, const Tensor& out) const {
  const Tensor& weight = weight_.tensor;
  expect_dtype(ids, DType::i32, "embedding: ids");
  expect_shape(ids, {-1}, "embedding: ids");
  expect_dtype(out, weight.dtype(), "embedding: out");
  expect_shape(out, {ids.dim(0), weight.dim(1)}, "embedding: out");
  LADDER_CHECK(ids.is_contiguous() && (out.dim(1) <= 1 || out.stride(1) == 1),
               "embedding: the ids, or the elements of an output row, are not adjacent");
  if (ctx.device.is_cpu()) {
    for (int64_t i = 0; i < ids.dim(0); ++i) {
      const int32_t id = ids.data<int32_t>()[i];
      LADDER_CHECK(id >= 0 && id < shard_.vocab_size, "token id {} is outside the vocabulary of {}", id,
                   shard_.vocab_size);
    }
  }
  if (out.numel() == 0) return;
  run_variant("embedding", embedding_variants(), ctx, EmbeddingArgs{ids, weight, shard_.begin, out});
  tp_group(ctx).all_reduce(ctx, out);
}

void LmHead::forward(const OpContext& ctx, const Tensor& hidden, const Tensor& logits) const {
  Communicator& tp = tp_group(ctx);
  if (tp.rank() == 0) {
    expect_dtype(logits, DType::f32, "lm head: logits");
    expect_shape(logits, {hidden.dim(0), shard_.vocab_size}, "lm head: logits");
  }
  const Tensor bias = bias_ ? bias_->tensor : Tensor();
  if (tp.size() == 1) {
    matmul(ctx, hidden, weight_.tensor, bias, logits);
    return;
  }
  const int64_t rows = hidden.dim(0);
  if (rows == 0) return;
  LADDER_CHECK(ctx.arena != nullptr, "lm head: several ranks need scratch memory in the context");
  ArenaScope scope(*ctx.arena);
  const Tensor mine = ctx.arena->take({rows, shard_.rows}, DType::f32);
  matmul(ctx, hidden, weight_.tensor, bias, mine);
  gather_logits(ctx, shard_, mine, logits);
}

void gather_logits(const OpContext& ctx, const VocabShard& shard, const Tensor& mine, const Tensor& logits) {
  Communicator& tp = tp_group(ctx);
  const int64_t rows = mine.dim(0);
  ArenaScope scope(*ctx.arena);
  Tensor all;
  if (tp.rank() == 0) all = ctx.arena->take({tp.size() * rows, shard.rows}, DType::f32);
  tp.gather(ctx, mine, all, 0);
  if (tp.rank() != 0) return;
  // Rank after rank becomes column after column; the last ranks' padding is cut off.
  for (int rank = 0; rank < tp.size(); ++rank) {
    const int64_t begin = std::min(rank * shard.rows, shard.vocab_size);
    const int64_t count = std::min(shard.rows, shard.vocab_size - begin);
    logits.narrow(1, begin, count)
        .copy_from(all.narrow(0, rank * rows, rows).narrow(1, 0, count), ctx.stream);
  }
}
// <<< task 1.5

VocabParallelEmbedding::VocabParallelEmbedding(const OpContext& ctx, const std::string& name,
                                               int64_t vocab_size, int64_t hidden_size, DType dtype)
    : shard_(vocab_shard(ctx, vocab_size)), weight_(vocab_matrix(ctx, name, shard_, hidden_size, dtype)) {}

LmHead::LmHead(const OpContext& ctx, const std::string& name, int64_t vocab_size, int64_t hidden_size,
               DType dtype, bool bias)
    : shard_(vocab_shard(ctx, vocab_size)),
      tied_(false),
      weight_(vocab_matrix(ctx, name, shard_, hidden_size, dtype)) {
  if (bias) bias_ = vocab_bias(ctx, name, shard_, dtype);
}

LmHead::LmHead(const VocabParallelEmbedding& embedding) : shard_(embedding.shard()), tied_(true) {
  weight_.tensor = embedding.weight();
}

std::vector<Parameter*> LmHead::parameters() {
  if (tied_) return {};
  std::vector<Parameter*> result = {&weight_};
  if (bias_) result.push_back(&*bias_);
  return result;
}

}  // namespace ladder

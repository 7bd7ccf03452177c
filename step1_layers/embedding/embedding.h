#pragma once
// Task 1.5: the vocabulary split over the tensor-parallel ranks.
//
// Rank r owns rows [r * n, (r + 1) * n) of the table, n = ceil(vocab_size / ranks); rows beyond the
// vocabulary are zero padding, so the vocabulary need not divide by the ranks. The embedding looks its ids
// up, leaves zero where another rank owns the row, and sums over the ranks. The LM head multiplies by the
// same (tied) or its own table: every rank has the logits of its rows, and rank 0, which samples, gets all.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "step1_layers/core/context.h"
#include "step1_layers/core/parameter.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

// The lookup itself, one rank's part of it.
struct EmbeddingArgs {
  Tensor ids;             // [tokens] i32, all in [0, vocabulary)
  Tensor weight;          // [rows, hidden_size]
  int64_t row_begin = 0;  // the id of the weight's first row
  Tensor out;             // [tokens, hidden_size]: the row, or zero where the id is not among the rows
};

std::span<const Variant<EmbeddingArgs>> embedding_variants();

// One rank's rows of a table with vocab_size rows. A rank whose rows all lie past the vocabulary owns none and
// begins at vocab_size.
struct VocabShard {
  int64_t vocab_size = 0;
  int64_t rows = 0;   // per rank, the same on all, padding included
  int64_t begin = 0;  // this rank's first id
  int64_t owned = 0;  // rows of it that are in the vocabulary
};

VocabShard vocab_shard(const OpContext& ctx, int64_t vocab_size);

class VocabParallelEmbedding {
 public:
  // Its parameter is "<name>.weight", filled by the full table [vocab_size, hidden_size].
  VocabParallelEmbedding(const OpContext& ctx, const std::string& name, int64_t vocab_size,
                         int64_t hidden_size, DType dtype);

  std::vector<Parameter*> parameters() { return {&weight_}; }  // valid until the object moves
  // ids [tokens] i32, out [tokens, hidden_size] in the table's dtype, rows of out may be strided. Every rank
  // has the whole result. No tokens: nothing is done. Error: an id outside the vocabulary (CPU), shapes or
  // dtypes that do not fit.
  void forward(const OpContext& ctx, const Tensor& ids, const Tensor& out) const;

  const VocabShard& shard() const { return shard_; }
  const Tensor& weight() const { return weight_.tensor; }  // [shard().rows, hidden_size]

 private:
  VocabShard shard_;
  Parameter weight_;
};

class LmHead {
 public:
  // Untied: its own table, parameter "<name>.weight", and if it has a bias "<name>.bias" [vocab_size].
  LmHead(const OpContext& ctx, const std::string& name, int64_t vocab_size, int64_t hidden_size, DType dtype,
         bool bias = false);
  // Tied: multiplies by the embedding's table and has no parameter of its own, so that the loader (step 2)
  // skips an lm_head.weight that the checkpoint holds beside it.
  explicit LmHead(const VocabParallelEmbedding& embedding);

  std::vector<Parameter*> parameters();  // empty when tied
  // logits [rows, vocab_size] f32 on rank 0 (elsewhere not looked at), for hidden [rows, hidden_size] in the
  // table's dtype: the matrix product with its own rows, straight into logits where there is one rank; else gathered,
  // with scratch from ctx.arena. Error: shapes or dtypes that do not fit, several ranks and no arena.
  void forward(const OpContext& ctx, const Tensor& hidden, const Tensor& logits) const;

 private:
  VocabShard shard_;
  bool tied_;
  Parameter weight_;
  std::optional<Parameter> bias_;
};

}  // namespace ladder

#pragma once
// Task 2.4: an LM head whose table is stored as a linear method wants it: in codes of few bits, for one.
//
// LmHead (step 1) multiplies by a dense table, its own or the embedding's. A checkpoint that is quantized may have codes for the
// head too; then it is a linear like those of the layers, of which a rank has the rows that LmHead would give it.
#include <vector>

#include "step1_layers/embedding/embedding.h"
#include "step1_layers/linear/linear.h"

namespace ladder {

class LinearHead {
 public:
  // Parameters are "lm_head.<what the method declares>". Error: a rank that gets no row of the vocabulary.
  LinearHead(const OpContext& ctx, int64_t vocab_size, int64_t width, const LinearOptions& options);

  std::vector<Parameter*> parameters() { return linear_.parameters(); }
  void process_after_load(const OpContext& ctx) { linear_.process_after_load(ctx); }
  // As LmHead::forward.
  void forward(const OpContext& ctx, const Tensor& hidden, const Tensor& logits) const;

 private:
  VocabShard shard_;
  Linear linear_;
};

}  // namespace ladder

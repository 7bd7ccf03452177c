#pragma once
// Task 8.5: one text at a time through a model, or through a range of its layers, without an engine: what evaluation and
// calibration need. The KV cache holds that one text and is written anew for the next.
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "step2_model/model.h"

namespace ladder {

// The same tensor on the CPU; of a GPU's a copy, when all work of ctx's stream is done.
Tensor on_cpu(const OpContext& ctx, const Tensor& tensor);

class TextPass {
 public:
  // For texts of up to max_tokens; the model, which is on ctx's device, outlives this. ctx's arena is not used.
  TextPass(Model& model, const OpContext& ctx, int64_t max_tokens);

  // Hidden states [tokens, hidden_size] of a text that begins at position 0, on the model's device, given to `use` and valid until it
  // returns. A model that does not begin at layer 0 takes `hidden`, what the range before it returned, on the CPU, and only counts the
  // ids.
  void forward(std::span<const int32_t> ids, const Tensor& hidden,
               const std::function<void(const Tensor& hidden)>& use);
  // logits [rows, vocab_size] f32, on the CPU, of rows of hidden states; also within forward's `use`.
  void logits(const Tensor& hidden, const std::function<void(const Tensor& logits)>& use);
  // What the last text left, on the model's device, a cache for each layer of the model's range: its first token in the first slot.
  std::span<const KvCacheView> caches() const { return caches_; }

 private:
  Model& model_;
  Arena arena_;
  OpContext ctx_;
  int64_t max_tokens_;
  std::vector<KvCacheView> caches_;
};

}  // namespace ladder

#pragma once
// Task 2.4: the decoder: embedding, a range of layers, the last norm and the LM head, as a Model.
#include <optional>
#include <vector>

#include "step1_layers/embedding/embedding.h"
#include "step2_model/decoder/decoder_layer.h"
#include "step2_model/decoder/linear_head.h"
#include "step2_model/model.h"

namespace ladder {

class DecoderModel final : public Model {
 public:
  // Parameters are allocated and not filled; the loader fills them. Error: a layer range outside of the
  // model, ranks that do not divide it, no memory.
  DecoderModel(const OpContext& ctx, const DecoderSpec& spec, const ModelOptions& options);

  const DecoderSpec& spec() const override { return spec_; }
  DType dtype() const override { return dtype_; }
  int64_t max_model_len() const override { return rope_table_.dim(0); }
  std::vector<KvCacheSpec> kv_cache_specs() const override;
  int64_t weight_bytes() const override { return weight_bytes_; }
  Tensor forward(const OpContext& ctx, const ModelInput& input) override;
  Tensor compute_logits(const OpContext& ctx, const Tensor& hidden) override;

  // Every parameter of the range, "layers.3.qkv_proj.weight" and so on; valid while the model lives.
  std::vector<Parameter*> parameters();
  void process_after_load(const OpContext& ctx);
  const std::vector<DecoderLayer>& layers() const { return layers_; }
  bool is_first() const { return layer_begin_ == 0; }
  bool is_last() const { return layer_end_ == spec_.num_layers; }

 private:
  // Embeddings, at the width of the layers, with their positions if the model learned them.
  void embed(const OpContext& ctx, const ModelInput& input, const Tensor& out) const;
  // Rows [rows, hidden_size] at the width of the head.
  Tensor project_out(const OpContext& ctx, const Tensor& hidden) const;
  void make_head(const OpContext& ctx, const ModelMakers& makers);
  // Of whichever kind it is, as LmHead::forward.
  void run_head(const OpContext& ctx, const Tensor& hidden, const Tensor& logits) const;

  DecoderSpec spec_;
  DType dtype_;
  int64_t layer_begin_;
  int64_t layer_end_;
  std::optional<VocabParallelEmbedding> embedding_;  // in the first range, and in the last if it is tied
  std::optional<Parameter> project_in_;              // in the first range [hidden_size, embedding_width]
  std::optional<Parameter>
      positions_;  // in the first range [position_offset + max_position_embeddings, hidden_size]
  std::vector<DecoderLayer> layers_;
  std::optional<NormParameters> norm_;     // in the last range
  std::optional<Parameter> project_out_;   // in the last range [embedding_width, hidden_size]
  std::optional<LmHead> lm_head_;          // in the last range, where it is dense
  std::optional<LinearHead> linear_head_;  // ... where it is not
  Tensor rope_table_;
  int64_t weight_bytes_ = 0;  // of parameters() and the table
};

}  // namespace ladder

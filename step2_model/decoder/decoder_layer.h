#pragma once
// Task 2.4: one layer of the decoder, this rank's shard of it.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "step1_layers/attention/kv_cache.h"
#include "step1_layers/linear/linear.h"
#include "step2_model/decoder/composites.h"
#include "step2_model/decoder/decoder_spec.h"
#include "step2_model/model_makers.h"

namespace ladder {

class DecoderLayer {
 public:
  // Parameters are named below "layers.<layer>".
  DecoderLayer(const OpContext& ctx, int64_t layer, const DecoderSpec& spec, DType dtype,
               const ModelMakers& makers);

  // Filled once each, then process_after_load. The pointers live as long as the layer does not move.
  std::vector<Parameter*> parameters();
  void process_after_load(const OpContext& ctx);
  KvCacheSpec kv_cache_spec() const { return attention_->kv_cache_spec(); }
  Mlp& mlp() const { return *mlp_; }

  // Adds this layer to the stream. rope_table is f32 [max_len, rotary_dim] (rope.h); metadata's rows are the
  // stream's.
  void forward(const OpContext& ctx, const Tensor& positions, const Tensor& rope_table,
               const KvCacheView& cache, const AttentionMetadata& metadata, ResidualStream& stream) const;

 private:
  DType dtype_;
  double eps_;
  bool post_norm_;
  NormParameters input_norm_;
  QkvParallelLinear qkv_proj_;
  std::optional<Parameter> q_norm_;
  std::optional<Parameter> k_norm_;
  std::unique_ptr<Attention> attention_;
  RowParallelLinear o_proj_;
  NormParameters post_attention_norm_;
  std::unique_ptr<Mlp> mlp_;
};

}  // namespace ladder

#pragma once
// Task 2.4: one layer of the decoder, this rank's shard of it.
#include <optional>
#include <string>
#include <vector>

#include "step1_layers/attention/kv_cache.h"
#include "step1_layers/linear/linear.h"
#include "step2_model/decoder/composites.h"
#include "step2_model/decoder/decoder_spec.h"

namespace ladder {

// A weight vector that every rank holds whole (the gains of a norm). Its parameter is `name`.
Parameter replicated_vector(const OpContext& ctx, const std::string& name, int64_t size, DType dtype);

class DecoderLayer {
 public:
  // `name` is "layers.<index>"; parameters are named below it.
  DecoderLayer(const OpContext& ctx, const std::string& name, const DecoderSpec& spec, DType dtype);

  // Filled once each, then process_after_load. The pointers live as long as the layer does not move.
  std::vector<Parameter*> parameters();
  void process_after_load(const OpContext& ctx);
  int64_t nbytes() const;
  KvCacheSpec kv_cache_spec() const;
  const Tensor& input_norm_weight() const { return input_norm_.tensor; }

  // Adds this layer to the stream. rope_table is f32 [max_len, rotary_dim] (rope.h); metadata's rows are the
  // stream's.
  void forward(const OpContext& ctx, const Tensor& positions, const Tensor& rope_table,
               const KvCacheView& cache, const AttentionMetadata& metadata, ResidualStream& stream) const;

 private:
  DType dtype_;
  MlpActivation activation_;
  double eps_;
  Parameter input_norm_;
  QkvParallelLinear qkv_proj_;
  std::optional<Parameter> q_norm_;
  std::optional<Parameter> k_norm_;
  RowParallelLinear o_proj_;
  Parameter post_attention_norm_;
  MergedColumnParallelLinear gate_up_proj_;
  RowParallelLinear down_proj_;
};

}  // namespace ladder

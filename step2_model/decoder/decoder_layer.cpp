#include "step2_model/decoder/decoder_layer.h"

#include <cmath>

#include "step1_layers/attention/attention_with_store.h"
#include "step1_layers/linear/load_shard.h"

namespace ladder {

Parameter replicated_vector(const OpContext& ctx, const std::string& name, int64_t size, DType dtype) {
  Parameter parameter;
  parameter.name = name;
  parameter.tensor = Tensor::empty({size}, dtype, ctx.device);
  parameter.load_part = [name, size, tensor = parameter.tensor](const Tensor& checkpoint, int) {
    load_shard(name, checkpoint, {.full = {size}, .begin = {0}, .size = {size}}, tensor);
  };
  return parameter;
}

DecoderLayer::DecoderLayer(const OpContext& ctx, const std::string& name, const DecoderSpec& spec,
                           DType dtype)
    : dtype_(dtype),
      activation_(spec.activation),
      eps_(spec.rms_norm_eps),
      input_norm_(replicated_vector(ctx, name + ".input_layernorm.weight", spec.hidden_size, dtype)),
      qkv_proj_(ctx, name + ".qkv_proj", spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim,
                {dtype, spec.qkv_bias, nullptr}),
      o_proj_(ctx, name + ".o_proj", spec.num_heads * spec.head_dim, spec.hidden_size,
              {dtype, spec.o_bias, nullptr}),
      post_attention_norm_(
          replicated_vector(ctx, name + ".post_attention_layernorm.weight", spec.hidden_size, dtype)),
      gate_up_proj_(ctx, name + ".gate_up_proj", spec.hidden_size,
                    {spec.intermediate_size, spec.intermediate_size}, {dtype, spec.mlp_bias, nullptr}),
      down_proj_(ctx, name + ".down_proj", spec.intermediate_size, spec.hidden_size,
                 {dtype, spec.mlp_bias, nullptr}) {
  if (spec.qk_norm) {
    q_norm_ = replicated_vector(ctx, name + ".q_norm.weight", spec.head_dim, dtype);
    k_norm_ = replicated_vector(ctx, name + ".k_norm.weight", spec.head_dim, dtype);
  }
}

std::vector<Parameter*> DecoderLayer::parameters() {
  std::vector<Parameter*> result = {&input_norm_, &post_attention_norm_};
  if (q_norm_) result.insert(result.end(), {&*q_norm_, &*k_norm_});
  for (Linear* linear : {static_cast<Linear*>(&qkv_proj_), static_cast<Linear*>(&o_proj_),
                         static_cast<Linear*>(&gate_up_proj_), static_cast<Linear*>(&down_proj_)})
    for (Parameter* parameter : linear->parameters()) result.push_back(parameter);
  return result;
}

void DecoderLayer::process_after_load(const OpContext& ctx) {
  qkv_proj_.process_after_load(ctx);
  o_proj_.process_after_load(ctx);
  gate_up_proj_.process_after_load(ctx);
  down_proj_.process_after_load(ctx);
}

int64_t DecoderLayer::nbytes() const {
  int64_t bytes = qkv_proj_.nbytes() + o_proj_.nbytes() + gate_up_proj_.nbytes() + down_proj_.nbytes();
  bytes += input_norm_.tensor.nbytes() + post_attention_norm_.tensor.nbytes();
  if (q_norm_) bytes += q_norm_->tensor.nbytes() + k_norm_->tensor.nbytes();
  return bytes;
}

KvCacheSpec DecoderLayer::kv_cache_spec() const {
  KvCacheSpec spec;
  spec.dtype = dtype_;
  spec.num_kv_heads = qkv_proj_.num_kv_heads();
  spec.k_dim = spec.v_dim = qkv_proj_.head_dim();
  return spec;
}

// >>> task 2.4: the forward pass of one decoder layer
void DecoderLayer::forward(const OpContext& ctx, const Tensor& positions, const Tensor& rope_table,
                           const KvCacheView& cache, const AttentionMetadata& metadata,
                           ResidualStream& stream) const {
  const int64_t tokens = stream.residual.dim(0);
  const int64_t heads = qkv_proj_.num_heads(), kv_heads = qkv_proj_.num_kv_heads();
  const int64_t head_dim = qkv_proj_.head_dim();
  {
    ArenaScope scope(*ctx.arena);
    const Tensor qkv = ctx.arena->take({tokens, qkv_proj_.out_features()}, dtype_);
    norm_qkv(ctx, stream, input_norm_.tensor, eps_, qkv_proj_, qkv);

    // The heads of q, k and v lie side by side in a row: views of them, no copies.
    const Tensor by_head = qkv.view({tokens, heads + 2 * kv_heads, head_dim});
    QkNormRopeStoreArgs args;
    args.q = by_head.narrow(1, 0, heads);
    args.k = by_head.narrow(1, heads, kv_heads);
    args.v = by_head.narrow(1, heads + kv_heads, kv_heads);
    if (q_norm_) {
      args.q_norm_weight = q_norm_->tensor;
      args.k_norm_weight = k_norm_->tensor;
    }
    args.eps = eps_;
    args.positions = positions;
    args.table = rope_table;
    args.slot_mapping = metadata.slot_mapping;
    args.cache = cache;

    const Tensor attention = ctx.arena->take({tokens, heads, head_dim}, dtype_);
    const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
    attention_with_store(ctx, args, metadata, scale, attention);
    o_residual(ctx, attention.view({tokens, heads * head_dim}), o_proj_, stream);
  }
  ArenaScope scope(*ctx.arena);
  const Tensor activated = ctx.arena->take({tokens, down_proj_.in_features()}, dtype_);
  norm_gate_up_silu(ctx, stream, post_attention_norm_.tensor, eps_, gate_up_proj_, activation_, activated);
  down_residual(ctx, activated, down_proj_, stream);
}
// <<< task 2.4

}  // namespace ladder

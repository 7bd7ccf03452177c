#include "step2_model/decoder/decoder_layer.h"

#include <cmath>
#include <utility>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

std::string layer_name(int64_t layer) {
  return fmt::format("layers.{}", layer);
}

// What the layer keeps per token: the heads of k and v that this rank owns.
KvCacheSpec cache_of(const QkvParallelLinear& qkv_proj, DType dtype) {
  KvCacheSpec spec;
  spec.dtype = dtype;
  spec.num_kv_heads = qkv_proj.num_kv_heads();
  spec.k_dim = spec.v_dim = qkv_proj.head_dim();
  return spec;
}

// The stream becomes its norm.
void norm_stream(const OpContext& ctx, ResidualStream& stream, const Norm& norm) {
  add_norm(ctx, stream, norm, stream.pending);
  std::swap(stream.residual, stream.pending);
}

}  // namespace

DecoderLayer::DecoderLayer(const OpContext& ctx, int64_t layer, const DecoderSpec& spec, DType dtype,
                           const ModelMakers& makers)
    : dtype_(dtype),
      eps_(spec.norm_eps),
      post_norm_(spec.post_norm),
      input_norm_(ctx, layer_name(layer) + ".input_layernorm", spec, dtype),
      qkv_proj_(
          ctx, layer_name(layer) + ".qkv_proj", spec.hidden_size, spec.num_heads, spec.num_kv_heads,
          spec.head_dim,
          make_linear_options(makers, ctx, layer_name(layer) + ".qkv_proj", spec, dtype, spec.qkv_bias)),
      attention_(make_attention(makers, ctx, layer, cache_of(qkv_proj_, dtype))),
      o_proj_(ctx, layer_name(layer) + ".o_proj", spec.num_heads * spec.head_dim, spec.hidden_size,
              make_linear_options(makers, ctx, layer_name(layer) + ".o_proj", spec, dtype, spec.o_bias)),
      post_attention_norm_(ctx, layer_name(layer) + ".post_attention_layernorm", spec, dtype),
      mlp_(make_mlp(makers, ctx, layer, spec, dtype)) {
  if (spec.qk_norm) {
    q_norm_ = replicated_parameter(ctx, layer_name(layer) + ".q_norm.weight", {spec.head_dim}, dtype);
    k_norm_ = replicated_parameter(ctx, layer_name(layer) + ".k_norm.weight", {spec.head_dim}, dtype);
  }
}

std::vector<Parameter*> DecoderLayer::parameters() {
  std::vector<Parameter*> result;
  if (q_norm_) result.insert(result.end(), {&*q_norm_, &*k_norm_});
  for (const std::vector<Parameter*>& more :
       {input_norm_.parameters(), post_attention_norm_.parameters(), qkv_proj_.parameters(),
        o_proj_.parameters(), mlp_->parameters()})
    result.insert(result.end(), more.begin(), more.end());
  return result;
}

void DecoderLayer::process_after_load(const OpContext& ctx) {
  qkv_proj_.process_after_load(ctx);
  o_proj_.process_after_load(ctx);
  mlp_->process_after_load(ctx);
}

// The transformer, for x the residual stream, one row per token:
//
//   h = x + o(attention(qkv(norm(x))))
//   y = h + down(act(gate(n)) * up(n))      where n = norm(h)
//
// The code adds to one stream instead of making h and y. And it may add late: what o and down compute waits
// in stream.pending until the next norm, which reads the stream anyway, adds it in the same pass
// (ResidualStream in composites.h). So after the last line y is stream.residual + stream.pending.
//
// With post_norm (the first Transformer's order, and OPT-350M's) there is no norm before qkv and gate, and the stream is
// normed after each addition: h = norm(x + o(...)), y = norm(h + down(...)).
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
    norm_qkv(ctx, stream, post_norm_ ? Norm{} : input_norm_.norm(), qkv_proj_, qkv);

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
    attention_->forward(ctx, args, metadata, scale, attention);
    o_residual(ctx, attention.view({tokens, heads * head_dim}), o_proj_, stream);
  }
  if (post_norm_) norm_stream(ctx, stream, input_norm_.norm());
  mlp_->forward(ctx, post_norm_ ? Norm{} : post_attention_norm_.norm(), stream);
  if (post_norm_) norm_stream(ctx, stream, post_attention_norm_.norm());
}
// <<< task 2.4

}  // namespace ladder

#include "step2_model/decoder/decoder_model.h"

#include "step1_layers/core/error.h"
#include "step1_layers/core/profile.h"
#include "step1_layers/distributed/communicator.h"
#include "step1_layers/linear/matmul.h"
#include "step1_layers/rotary/rope.h"
#include "step2_model/decoder/add_residual.h"

namespace ladder {

DecoderModel::DecoderModel(const OpContext& ctx, const DecoderSpec& spec, const ModelOptions& options)
    : spec_(spec),
      dtype_(options.dtype),
      layer_begin_(options.layer_begin),
      layer_end_(options.layer_end < 0 ? spec.num_layers : options.layer_end) {
  LADDER_CHECK(dtype_ == DType::f32 || dtype_ == DType::bf16 || dtype_ == DType::f16,
               "a model runs in f32, bf16 or f16, not in {}", dtype_name(dtype_));
  LADDER_CHECK(layer_begin_ >= 0 && layer_begin_ < layer_end_ && layer_end_ <= spec_.num_layers,
               "no layers [{}, {}) in a model of {}", layer_begin_, layer_end_, spec_.num_layers);
  LADDER_CHECK(options.max_model_len >= 0, "max_model_len cannot be {}", options.max_model_len);
  LADDER_CHECK(spec_.quantization_config.empty() || options.makers.linear_method,
               "quantization_config {}: no linear method takes quantized weights", spec_.quantization_config);

  const int64_t max_model_len =
      options.max_model_len > 0 ? options.max_model_len : spec_.max_position_embeddings;
  LADDER_CHECK(!spec_.learned_positions || max_model_len <= spec_.max_position_embeddings,
               "a max_model_len of {} is beyond the {} positions that the model has learned", max_model_len,
               spec_.max_position_embeddings);

  const int64_t width = spec_.embedding_width();
  if (is_first() || (is_last() && spec_.tie_word_embeddings))
    embedding_.emplace(ctx, "embed_tokens", spec_.vocab_size, width, dtype_);
  if (is_first() && width != spec_.hidden_size)
    project_in_ = replicated_parameter(ctx, "project_in.weight", {spec_.hidden_size, width}, dtype_);
  if (is_first() && spec_.learned_positions)
    positions_ = replicated_parameter(
        ctx, "embed_positions.weight",
        {spec_.position_offset + spec_.max_position_embeddings, spec_.hidden_size}, dtype_);
  layers_.reserve(static_cast<size_t>(layer_end_ - layer_begin_));  // parameters must not move
  for (int64_t layer = layer_begin_; layer < layer_end_; ++layer)
    layers_.emplace_back(ctx, layer, spec_, dtype_, options.makers);
  if (is_last()) {
    if (spec_.final_norm) norm_.emplace(ctx, "norm", spec_, dtype_);
    if (width != spec_.hidden_size)
      project_out_ = replicated_parameter(ctx, "project_out.weight", {width, spec_.hidden_size}, dtype_);
    make_head(ctx, options.makers);
  }
  rope_table_ = make_rope_table(spec_.rope, max_model_len);
  if (!ctx.device.is_cpu()) rope_table_ = rope_table_.to(ctx.device);
  weight_bytes_ = rope_table_.nbytes();
  for (const Parameter* parameter : parameters()) weight_bytes_ += parameter->tensor.nbytes();
}

void DecoderModel::make_head(const OpContext& ctx, const ModelMakers& makers) {
  if (spec_.tie_word_embeddings) {
    lm_head_.emplace(*embedding_);
    return;
  }
  const int64_t width = spec_.embedding_width();
  if (!spec_.quantization_config.empty()) {
    const LinearOptions options =
        make_linear_options(makers, ctx, "lm_head", spec_, dtype_, spec_.lm_head_bias);
    if (options.method) {
      linear_head_.emplace(ctx, spec_.vocab_size, width, options);
      return;
    }
  }
  lm_head_.emplace(ctx, "lm_head", spec_.vocab_size, width, dtype_, spec_.lm_head_bias);
}

std::vector<Parameter*> DecoderModel::parameters() {
  std::vector<Parameter*> result;
  auto append = [&](const std::vector<Parameter*>& more) {
    result.insert(result.end(), more.begin(), more.end());
  };
  if (embedding_) append(embedding_->parameters());
  for (auto* one : {&project_in_, &positions_, &project_out_})
    if (*one) result.push_back(&**one);
  for (DecoderLayer& layer : layers_) append(layer.parameters());
  if (norm_) append(norm_->parameters());
  if (lm_head_) append(lm_head_->parameters());
  if (linear_head_) append(linear_head_->parameters());
  return result;
}

void DecoderModel::process_after_load(const OpContext& ctx) {
  for (DecoderLayer& layer : layers_) layer.process_after_load(ctx);
  if (linear_head_) linear_head_->process_after_load(ctx);
}

std::vector<KvCacheSpec> DecoderModel::kv_cache_specs() const {
  std::vector<KvCacheSpec> specs;
  for (const DecoderLayer& layer : layers_) specs.push_back(layer.kv_cache_spec());
  return specs;
}

void DecoderModel::embed(const OpContext& ctx, const ModelInput& input, const Tensor& out) const {
  ArenaScope scope(*ctx.arena);
  if (project_in_) {
    const Tensor narrow = ctx.arena->take({out.dim(0), spec_.embedding_width()}, dtype_);
    embedding_->forward(ctx, input.input_ids, narrow);
    matmul(ctx, narrow, project_in_->tensor, {}, out);
  } else {
    embedding_->forward(ctx, input.input_ids, out);
  }
  if (!positions_ || out.numel() == 0) return;
  const Tensor table = positions_->tensor.narrow(0, spec_.position_offset, spec_.max_position_embeddings);
  const Tensor rows = ctx.arena->take(out.shape(), dtype_);
  run_variant("embedding", embedding_variants(), ctx, EmbeddingArgs{input.positions, table, 0, rows});
  add_residual(ctx, rows, out);
}

Tensor DecoderModel::project_out(const OpContext& ctx, const Tensor& hidden) const {
  if (!project_out_) return hidden;
  const Tensor narrow = ctx.arena->take({hidden.dim(0), spec_.embedding_width()}, dtype_);
  matmul(ctx, hidden, project_out_->tensor, {}, narrow);
  return narrow;
}

void DecoderModel::run_head(const OpContext& ctx, const Tensor& hidden, const Tensor& logits) const {
  if (linear_head_)
    linear_head_->forward(ctx, hidden, logits);
  else
    lm_head_->forward(ctx, hidden, logits);
}

// >>> task 2.4: the model's forward pass over its range of layers
Tensor DecoderModel::forward(const OpContext& ctx, const ModelInput& input) {
  LADDER_CHECK(input.kv_caches.size() == layers_.size(), "{} layers, but {} KV caches", layers_.size(),
               input.kv_caches.size());
  const ProfileRange range("2.4 layers");
  const int64_t tokens = input.positions.dim(0);
  ResidualStream stream;
  stream.residual = ctx.arena->take({tokens, spec_.hidden_size}, dtype_);
  stream.pending = ctx.arena->take({tokens, spec_.hidden_size}, dtype_);
  if (is_first()) {
    embed(ctx, input, stream.residual);
  } else {
    expect_shape(input.hidden, {tokens, spec_.hidden_size}, "hidden");
    stream.residual.copy_from(input.hidden, ctx.stream);
  }
  for (size_t i = 0; i < layers_.size(); ++i)
    layers_[i].forward(ctx, input.positions, rope_table_, input.kv_caches[i], input.attention, stream);
  if (norm_) {
    add_norm(ctx, stream, norm_->norm(), stream.pending);
    return stream.pending;
  }
  add_pending(ctx, stream);  // the next range gets the whole sum
  return stream.residual;
}

Tensor DecoderModel::compute_logits(const OpContext& ctx, const Tensor& hidden) {
  const ProfileRange range("1.5 LM head");
  LADDER_CHECK(is_last(), "only the last range of layers has an LM head");
  Tensor logits;
  if (tp_group(ctx).rank() == 0) logits = ctx.arena->take({hidden.dim(0), spec_.vocab_size}, DType::f32);
  run_head(ctx, project_out(ctx, hidden), logits);
  return logits;
}
// <<< task 2.4

}  // namespace ladder

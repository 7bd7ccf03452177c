#include "step4_runner/weight_bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace ladder {
namespace {

FeatureRange all_of(int64_t full) {
  return {full, 0, full};
}
FeatureRange share_of(int64_t full, int64_t rank, int64_t ranks) {
  return {full, full / ranks * rank, full / ranks};
}

// Counts one rank's linears.
class RankLinears {
 public:
  RankLinears(const DecoderSpec& spec, const RunnerConfig& config, GridPlace place)
      : spec_(spec), config_(config), place_(place) {
    ctx_.device = config.device;
    makers_.linear_method = config.linear_method;
  }

  int64_t attention(const std::string& layer) const {
    const int64_t ranks = config_.tensor_parallel_size, head_dim = spec_.head_dim;
    const FeatureRange q = share(spec_.num_heads * head_dim);
    // Fewer KV heads than ranks: neighbours hold the same one.
    const int64_t copies = std::max<int64_t>(ranks / spec_.num_kv_heads, 1);
    const FeatureRange kv =
        share_of(spec_.num_kv_heads * head_dim, place_.tensor_rank / copies, ranks / copies);
    return linear(layer + ".qkv_proj", all_of(spec_.hidden_size), {q, kv, kv}, spec_.qkv_bias) +
           linear(layer + ".o_proj", q, {all_of(spec_.hidden_size)}, spec_.o_bias);
  }

  int64_t mlp(const std::string& layer) const {
    if (spec_.gated_mlp) return gated(layer, spec_.intermediate_size);
    const FeatureRange hidden = all_of(spec_.hidden_size), inner = share(spec_.intermediate_size);
    return linear(layer + ".fc1", hidden, {inner}, spec_.mlp_bias) +
           linear(layer + ".fc2", inner, {hidden}, spec_.mlp_bias);
  }

  // Whole ones of this rank, or this rank's part of each one's width.
  int64_t routed_experts(const std::string& layer) const {
    const int64_t full = spec_.experts.intermediate_size, all = spec_.experts.num_experts;
    const FeatureRange hidden = all_of(spec_.hidden_size);
    const bool are_whole = config_.expert_parallel;
    const FeatureRange inner =
        are_whole ? all_of(full)
                  : share_of(full, expert_rank(config_, place_.tensor_rank), num_expert_ranks(config_));
    const auto count =
        static_cast<size_t>(are_whole ? experts_of_rank(config_, all, place_.tensor_rank).size() : all);
    return linear(layer + ".experts.gate_up", hidden, std::vector(2 * count, inner), false, 2 * all) +
           linear(layer + ".experts.down", inner, std::vector(count, hidden), false, all);
  }

  // This rank's rows of the vocabulary; of a dense table as many as any rank's.
  int64_t head() const {
    const int64_t vocab = spec_.vocab_size, width = spec_.embedding_width();
    const int64_t rows = (vocab + config_.tensor_parallel_size - 1) / config_.tensor_parallel_size;
    const int64_t begin = std::min(place_.tensor_rank * rows, vocab);
    if (!spec_.quantization_config.empty() && !spec_.tie_word_embeddings &&
        make_linear_options(makers_, ctx_, "lm_head", spec_, config_.dtype, spec_.lm_head_bias).method)
      return linear("lm_head", all_of(width), {{vocab, begin, std::min(rows, vocab - begin)}},
                    spec_.lm_head_bias);
    return rows * (width + (spec_.lm_head_bias ? 1 : 0)) * dtype_size(config_.dtype);
  }

  int64_t shared_expert(const std::string& layer) const {
    const int64_t width = spec_.experts.shared_intermediate_size;
    return width > 0 ? gated(layer + ".shared_expert", width) : 0;
  }

 private:
  FeatureRange share(int64_t full) const {
    return share_of(full, place_.tensor_rank, config_.tensor_parallel_size);
  }

  int64_t gated(const std::string& name, int64_t width) const {
    const FeatureRange hidden = all_of(spec_.hidden_size), inner = share(width);
    return linear(name + ".gate_up_proj", hidden, {inner, inner}, spec_.mlp_bias) +
           linear(name + ".down_proj", inner, {hidden}, spec_.mlp_bias);
  }

  // `max_parts`: as make_linear_options() has it.
  int64_t linear(const std::string& name, FeatureRange in, std::vector<FeatureRange> out, bool bias,
                 int64_t max_parts = std::numeric_limits<int64_t>::max()) const {
    const LinearShape shape{in, std::move(out), bias, config_.dtype};
    const auto method =
        make_linear_options(makers_, ctx_, name, spec_, config_.dtype, bias, max_parts).method;
    if (!method)
      return (shape.in_features() + (bias ? 1 : 0)) * shape.out_features() * dtype_size(config_.dtype);
    int64_t bytes = 0;
    for (const LinearParameterSpec& parameter : method->parameters(shape))
      bytes += parameter.shape(shape).numel() * dtype_size(parameter.dtype);
    return bytes;
  }

  const DecoderSpec& spec_;
  const RunnerConfig& config_;
  GridPlace place_;
  OpContext ctx_;
  ModelMakers makers_;
};

}  // namespace

WeightBytes weight_bytes(const DecoderSpec& spec, const RunnerConfig& config, GridPlace place) {
  const RankLinears linears(spec, config, place);
  const int64_t element = dtype_size(config.dtype), hidden = spec.hidden_size;
  const bool is_first = place.stage == 0, is_last = place.stage + 1 == config.pipeline_parallel_size;
  const int64_t vocab =
      (spec.vocab_size + config.tensor_parallel_size - 1) / config.tensor_parallel_size;  // rows of a rank
  const int64_t table = vocab * spec.embedding_width();

  WeightBytes bytes;
  const LayerRange layers = layers_of(config, spec.num_layers, place.stage);
  for (int64_t i = layers.begin; i < layers.end; ++i) {
    const std::string layer = fmt::format("layers.{}", i);
    int64_t beside = 2 * spec.norm_parameters() + (spec.qk_norm ? 2 * spec.head_dim : 0);  // the linears
    bytes.whole += linears.attention(layer);
    if (spec.has_experts(i)) {
      beside += spec.experts.num_experts * hidden;                      // the router
      if (spec.experts.shared_intermediate_size > 0) beside += hidden;  // the shared expert's gate
      bytes.whole += linears.shared_expert(layer);
      bytes.experts += linears.routed_experts(layer);
    } else {
      bytes.whole += linears.mlp(layer);
    }
    bytes.whole += beside * element;
  }
  if (is_first) {
    const int64_t positions = spec.parameters_before_layers() - spec.projection_parameters();
    bytes.looked_up += positions * element;
    bytes.whole += spec.projection_parameters() * element;
    if (!(is_last && spec.tie_word_embeddings)) bytes.looked_up += table * element;
  }
  if (is_last)
    bytes.whole += linears.head() +
                   ((spec.final_norm ? spec.norm_parameters() : 0) + spec.projection_parameters()) * element;
  bytes.looked_up += config.batch.max_model_len * spec.rope.rotary_dim * dtype_size(DType::f32);
  return bytes;
}

}  // namespace ladder

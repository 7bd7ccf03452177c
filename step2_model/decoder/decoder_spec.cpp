#include "step2_model/decoder/decoder_spec.h"

#include <algorithm>

namespace ladder {

void DecoderSpec::add_eos_token(int64_t id) {
  if (id < 0 || id >= vocab_size) return;
  const auto token = static_cast<int32_t>(id);
  if (std::find(eos_token_ids.begin(), eos_token_ids.end(), token) == eos_token_ids.end())
    eos_token_ids.push_back(token);
}

int64_t DecoderSpec::num_expert_layers() const {
  return experts.num_experts > 0 ? std::count(experts.layers.begin(), experts.layers.end(), true) : 0;
}

int64_t DecoderSpec::mean_active_mlp_width() const {
  const int64_t expert_layers = num_expert_layers();
  if (expert_layers == 0) return intermediate_size;
  const int64_t of_experts =
      experts.rule.top_k * experts.intermediate_size + experts.shared_intermediate_size;
  return ((num_layers - expert_layers) * intermediate_size + expert_layers * of_experts) / num_layers;
}

namespace {

// All parameters, of a model whose expert layers hold so many experts beside the shared one.
int64_t parameters_with(const DecoderSpec& spec, int64_t num_experts) {
  const int64_t q_width = spec.num_heads * spec.head_dim, kv_width = spec.num_kv_heads * spec.head_dim;
  const int64_t hidden = spec.hidden_size;
  int64_t layer = hidden * (q_width + 2 * kv_width) + q_width * hidden;  // attention
  layer += 2 * spec.norm_parameters();
  if (spec.qkv_bias) layer += q_width + 2 * kv_width;
  if (spec.o_bias) layer += hidden;
  if (spec.qk_norm) layer += 2 * spec.head_dim;
  const int64_t inner = spec.gated_mlp ? 2 * spec.intermediate_size : spec.intermediate_size;
  int64_t mlp = hidden * inner + spec.intermediate_size * hidden;  // gate and up or fc1, then down or fc2
  if (spec.mlp_bias) mlp += inner + hidden;
  const ExpertsSpec& experts = spec.experts;
  int64_t mixture = hidden * experts.num_experts + num_experts * 3 * hidden * experts.intermediate_size;
  if (experts.shared_intermediate_size > 0) mixture += 3 * hidden * experts.shared_intermediate_size + hidden;
  const int64_t embeddings = spec.vocab_size * spec.embedding_width() * (spec.tie_word_embeddings ? 1 : 2);
  return spec.num_layers * layer + (spec.num_layers - spec.num_expert_layers()) * mlp +
         spec.num_expert_layers() * mixture + embeddings + (spec.final_norm ? spec.norm_parameters() : 0) +
         (spec.lm_head_bias ? spec.vocab_size : 0) + spec.parameters_before_layers() +
         spec.projection_parameters();
}

}  // namespace

int64_t DecoderSpec::num_parameters() const {
  return parameters_with(*this, experts.num_experts);
}

int64_t DecoderSpec::num_active_parameters() const {
  return parameters_with(*this, experts.num_experts > 0 ? experts.rule.top_k : 0);
}

}  // namespace ladder

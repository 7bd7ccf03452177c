#pragma once
// Checkpoints of random shape and kind, for models that no golden file has.
#include <nlohmann/json.hpp>

#include <cmath>
#include <string>
#include <vector>

#include "step2_model/decoder/decoder_spec.h"
#include "tests/support/numerics.h"
#include "tests/support/safetensors_writer.h"

namespace ladder::testing {

using nlohmann::json;

inline json random_rope(Random& random) {
  const std::vector<json> kinds = {
      {{"rope_type", "default"}},
      {{"rope_type", "linear"}, {"factor", 2.5}},
      {{"rope_type", "dynamic"}, {"factor", 3.0}},
      {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 16}},
      {{"rope_type", "llama3"},
       {"factor", 8.0},
       {"low_freq_factor", 1.0},
       {"high_freq_factor", 4.0},
       {"original_max_position_embeddings", 16}}};
  json rope = random.one_of(kinds);
  rope["rope_theta"] = random.one_of<double>({100.0, 10000.0, 1e6});
  return rope;
}

inline json random_config(Random& random, bool experts = false) {
  const std::string family = experts
                                 ? random.one_of<std::string>({"Mixtral", "Qwen2Moe", "Qwen3Moe", "PhiMoE"})
                                 : random.one_of<std::string>({"Qwen3", "Qwen2", "Llama"});
  const int64_t kv_heads = random.one_of<int64_t>({1, 2, 3, 4});
  const int64_t heads = kv_heads * random.one_of<int64_t>({1, 2, 3, 5, 8});
  json config = {
      {"architectures", {family + "ForCausalLM"}},
      {"hidden_size", random.integer(12, 90)},
      {"intermediate_size", random.integer(1, 130)},
      {"num_hidden_layers", random.integer(1, 3)},
      {"num_attention_heads", heads},
      {"num_key_value_heads", kv_heads},
      {"head_dim", random.one_of<int64_t>({4, 6, 10, 16, 18, 64, 66, 130})},
      // Logits are compared by their rows: one of a single logit may be as small as it likes.
      {"vocab_size", random.integer(8, 300)},
      {"max_position_embeddings", 64},
      {"rms_norm_eps", random.one_of<double>({1e-6, 1e-2, 0.3})},
      {"hidden_act", experts ? "silu" : random.one_of<std::string>({"silu", "gelu", "gelu_pytorch_tanh"})},
      {"tie_word_embeddings", random.integer(0, 1) == 1},
      {"rope_parameters", random_rope(random)}};
  if (family == "Qwen3" || family == "Llama" || family == "Qwen3Moe" || family == "PhiMoE")
    config["attention_bias"] = random.integer(0, 1) == 1;
  if (family == "Llama") config["mlp_bias"] = random.integer(0, 1) == 1;
  if (experts) {
    const bool two = family == "PhiMoE";  // its router chooses two
    const int64_t num_experts = random.integer(two ? 2 : 1, 9);
    config[two || family == "Mixtral" ? "num_local_experts" : "num_experts"] = num_experts;
    config["num_experts_per_tok"] = two ? 2 : random.integer(1, num_experts);
  }
  if (family == "PhiMoE") {
    config["router_jitter_noise"] = random.one_of<double>({0.01, 0.2});
    config["lm_head_bias"] = !config["tie_word_embeddings"].get<bool>() && random.integer(0, 1) == 1;
  }
  if (family.starts_with("Qwen") && experts) {
    config["moe_intermediate_size"] = random.integer(1, 60);
    config["norm_topk_prob"] = random.integer(0, 1) == 1;
    config["decoder_sparse_step"] = random.integer(1, 2);
    if (random.integer(0, 1) == 1) config["mlp_only_layers"] = {0};
  }
  if (family == "Qwen2Moe") config["shared_expert_intermediate_size"] = random.integer(1, 90);
  return config;
}

inline NamedTensors random_weights(Random& random, const DecoderSpec& spec) {
  NamedTensors tensors;
  auto add = [&](const std::string& name, const Shape& shape) {
    const bool gains = name.find("norm") != std::string::npos;
    const double deviation =
        shape.ndim() == 2 ? 1.5 / std::sqrt(static_cast<double>(shape[1])) : (gains ? 1.0 : 0.3);
    tensors.emplace_back(name, random.normal(shape, DType::f32, deviation));
  };
  auto add_linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
    add(name + ".weight", {out, in});
    if (bias) add(name + ".bias", {out});
  };
  const int64_t hidden = spec.hidden_size, mlp = spec.intermediate_size;
  const int64_t q = spec.num_heads * spec.head_dim, kv = spec.num_kv_heads * spec.head_dim;
  add("model.embed_tokens.weight", {spec.vocab_size, hidden});
  const bool norm_bias = spec.norm == NormKind::layer_norm;
  const auto add_norm = [&](const std::string& name) {
    add(name + ".weight", {hidden});
    if (norm_bias) add(name + ".bias", {hidden});
  };
  if (!spec.tie_word_embeddings) add_linear("lm_head", spec.vocab_size, hidden, spec.lm_head_bias);
  add_norm("model.norm");
  for (int64_t i = 0; i < spec.num_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    add_norm(layer + "input_layernorm");
    add_norm(layer + "post_attention_layernorm");
    add_linear(layer + "self_attn.q_proj", q, hidden, spec.qkv_bias);
    add_linear(layer + "self_attn.k_proj", kv, hidden, spec.qkv_bias);
    add_linear(layer + "self_attn.v_proj", kv, hidden, spec.qkv_bias);
    add_linear(layer + "self_attn.o_proj", hidden, q, spec.o_bias);
    if (spec.qk_norm) {
      add(layer + "self_attn.q_norm.weight", {spec.head_dim});
      add(layer + "self_attn.k_norm.weight", {spec.head_dim});
    }
    if (!spec.has_experts(i)) {
      add_linear(layer + "mlp.gate_proj", mlp, hidden, spec.mlp_bias);
      add_linear(layer + "mlp.up_proj", mlp, hidden, spec.mlp_bias);
      add_linear(layer + "mlp.down_proj", hidden, mlp, spec.mlp_bias);
      continue;
    }
    const bool mixtral =
        spec.architecture == "MixtralForCausalLM" || spec.architecture == "PhiMoEForCausalLM";
    const std::string block = layer + (mixtral ? "block_sparse_moe." : "mlp.");
    add(block + "gate.weight", {spec.experts.num_experts, hidden});
    for (int64_t expert = 0; expert < spec.experts.num_experts; ++expert) {
      const std::string one = block + "experts." + std::to_string(expert) + ".";
      add(one + (mixtral ? "w1.weight" : "gate_proj.weight"), {spec.experts.intermediate_size, hidden});
      add(one + (mixtral ? "w3.weight" : "up_proj.weight"), {spec.experts.intermediate_size, hidden});
      add(one + (mixtral ? "w2.weight" : "down_proj.weight"), {hidden, spec.experts.intermediate_size});
    }
    if (const int64_t shared = spec.experts.shared_intermediate_size; shared > 0) {
      add(block + "shared_expert.gate_proj.weight", {shared, hidden});
      add(block + "shared_expert.up_proj.weight", {shared, hidden});
      add(block + "shared_expert.down_proj.weight", {hidden, shared});
      add(block + "shared_expert_gate.weight", {1, hidden});
    }
  }
  return tensors;
}

// OPT, which has its own keys and names.
inline json random_opt_config(Random& random) {
  // An embedding of one number or two has no norm: where the sum in front of it cancels, all logits of the row are
  // its rounding errors.
  const int64_t heads = random.integer(1, 6), hidden = heads * random.one_of<int64_t>({4, 6, 10, 16, 64});
  json config = {{"architectures", {"OPTForCausalLM"}},
                 {"hidden_size", hidden},
                 {"ffn_dim", random.integer(1, 130)},
                 {"num_hidden_layers", random.integer(1, 3)},
                 {"num_attention_heads", heads},
                 {"vocab_size", random.integer(8, 300)},
                 {"max_position_embeddings", random.integer(40, 64)},
                 {"activation_function", random.one_of<std::string>({"relu", "gelu", "gelu_new"})},
                 {"word_embed_proj_dim", random.integer(0, 1) == 1 ? hidden : random.integer(4, 90)}};
  for (const char* key :
       {"do_layer_norm_before", "_remove_final_layer_norm", "enable_bias", "tie_word_embeddings"})
    if (random.integer(0, 1) == 1) config[key] = random.integer(0, 1) == 1;
  return config;
}

inline NamedTensors random_opt_weights(Random& random, const DecoderSpec& spec) {
  NamedTensors tensors;
  const auto add = [&](const std::string& name, int64_t rows, int64_t columns, bool bias) {
    tensors.emplace_back(name + ".weight", random.normal({rows, columns}, DType::f32,
                                                         1.5 / std::sqrt(static_cast<double>(columns))));
    if (bias) tensors.emplace_back(name + ".bias", random.normal({rows}, DType::f32, 0.3));
  };
  const int64_t hidden = spec.hidden_size, width = spec.embedding_width();
  const auto add_norm = [&](const std::string& name) {
    tensors.emplace_back(name + ".weight", random.normal({hidden}, DType::f32));
    tensors.emplace_back(name + ".bias", random.normal({hidden}, DType::f32, 0.3));
  };
  const std::string decoder = "model.decoder.";
  add(decoder + "embed_tokens", spec.vocab_size, width, false);
  add(decoder + "embed_positions", spec.max_position_embeddings + 2, hidden, false);
  if (width != hidden) add(decoder + "project_in", hidden, width, false);
  if (width != hidden) add(decoder + "project_out", width, hidden, false);
  if (!spec.tie_word_embeddings) add("lm_head", spec.vocab_size, width, false);
  if (spec.final_norm) add_norm(decoder + "final_layer_norm");
  for (int64_t i = 0; i < spec.num_layers; ++i) {
    const std::string layer = decoder + "layers." + std::to_string(i) + ".";
    for (const char* projection : {"q_proj", "k_proj", "v_proj", "out_proj"})
      add(layer + "self_attn." + projection, hidden, hidden, spec.qkv_bias);
    add_norm(layer + "self_attn_layer_norm");
    add_norm(layer + "final_layer_norm");
    add(layer + "fc1", spec.intermediate_size, hidden, spec.mlp_bias);
    add(layer + "fc2", hidden, spec.intermediate_size, spec.mlp_bias);
  }
  return tensors;
}

}  // namespace ladder::testing

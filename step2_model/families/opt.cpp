// OPT (Zhang et al., 2022, arXiv 2205.01068): LayerNorm, learned positions, an MLP without a gate, biases everywhere.
#include "step1_layers/core/error.h"
#include "step2_model/families/family.h"

namespace ladder {
namespace {

void read_opt_config(const ConfigObject& config, DecoderSpec& spec) {
  read_head_dim(config, spec, 0);
  spec.num_kv_heads = spec.num_heads;
  spec.norm = NormKind::layer_norm;
  spec.norm_eps = 1e-5;  // torch's default, of which the config says nothing
  LADDER_CHECK(config.boolean("layer_norm_elementwise_affine", true),
               "{}: false (a norm without weights) is not supported, expected true",
               config.name("layer_norm_elementwise_affine"));
  // The 350M model alone norms after its additions, and then there is no norm after the last layer.
  spec.post_norm = !config.boolean("do_layer_norm_before", true);
  spec.final_norm = !spec.post_norm && !config.boolean("_remove_final_layer_norm", false);
  spec.qkv_bias = spec.o_bias = spec.mlp_bias = config.boolean("enable_bias", true);
  spec.gated_mlp = false;
  spec.tie_word_embeddings = config.boolean("tie_word_embeddings", true);
  const int64_t width = config.integer("word_embed_proj_dim", 1, int64_t{1} << 20, spec.hidden_size);
  if (width != spec.hidden_size) spec.embedding_size = width;
  spec.learned_positions = true;
  spec.position_offset = 2;  // its trainer counted positions from the padding token's number on, 1, plus one
}

constexpr TensorName kNames[] = {
    {"decoder.embed_tokens.weight", "embed_tokens.weight"},
    {"decoder.embed_positions.weight", "embed_positions.weight"},
    {"decoder.project_in.weight", "project_in.weight"},
    {"decoder.project_out.weight", "project_out.weight"},
    {"decoder.final_layer_norm.*", "norm.*"},
    {"lm_head.*", "lm_head.*"},
    {"decoder.layers.#.self_attn_layer_norm.*", "layers.#.input_layernorm.*"},
    {"decoder.layers.#.final_layer_norm.*", "layers.#.post_attention_layernorm.*"},
    {"decoder.layers.#.self_attn.q_proj.*", "layers.#.qkv_proj.*", 0},
    {"decoder.layers.#.self_attn.k_proj.*", "layers.#.qkv_proj.*", 1},
    {"decoder.layers.#.self_attn.v_proj.*", "layers.#.qkv_proj.*", 2},
    {"decoder.layers.#.self_attn.out_proj.*", "layers.#.o_proj.*"},
    {"decoder.layers.#.fc1.*", "layers.#.fc1.*"},
    {"decoder.layers.#.fc2.*", "layers.#.fc2.*"},
};

}  // namespace

const ModelFamily& opt_family() {
  static const ModelFamily family{.architecture = "OPTForCausalLM",
                                  .model_type = "opt",
                                  .read_config = read_opt_config,
                                  .tensor_names = kNames,
                                  .intermediate_size_key = "ffn_dim",
                                  .activation_key = "activation_function",
                                  .default_activation = "relu"};
  return family;
}

}  // namespace ladder

#include "step2_model/families/family.h"

namespace ladder {
namespace {

// >>> task 2.1: Llama's own fields
void read_llama_config(const ConfigObject& config, DecoderSpec& spec) {
  read_head_dim(config, spec, 0);
  read_num_kv_heads(config, spec, 0);
  spec.qkv_bias = spec.o_bias = config.boolean("attention_bias", false);  // all four projections
  spec.mlp_bias = config.boolean("mlp_bias", false);
  spec.qk_norm = false;
}
// <<< task 2.1

}  // namespace

// >>> task 2.3: which parameter, and which part of it, each checkpoint tensor fills
std::span<const TensorName> llama_tensor_names() {
  static constexpr TensorName names[] = {
      {"embed_tokens.weight", "embed_tokens.weight"},
      {"norm.weight", "norm.weight"},
      {"lm_head.weight", "lm_head.weight"},
      {"layers.#.input_layernorm.weight", "layers.#.input_layernorm.weight"},
      {"layers.#.post_attention_layernorm.weight", "layers.#.post_attention_layernorm.weight"},
      {"layers.#.self_attn.q_proj.weight", "layers.#.qkv_proj.weight", 0},
      {"layers.#.self_attn.k_proj.weight", "layers.#.qkv_proj.weight", 1},
      {"layers.#.self_attn.v_proj.weight", "layers.#.qkv_proj.weight", 2},
      {"layers.#.self_attn.q_proj.bias", "layers.#.qkv_proj.bias", 0},
      {"layers.#.self_attn.k_proj.bias", "layers.#.qkv_proj.bias", 1},
      {"layers.#.self_attn.v_proj.bias", "layers.#.qkv_proj.bias", 2},
      {"layers.#.self_attn.o_proj.weight", "layers.#.o_proj.weight"},
      {"layers.#.self_attn.o_proj.bias", "layers.#.o_proj.bias"},
      {"layers.#.mlp.gate_proj.weight", "layers.#.gate_up_proj.weight", 0},
      {"layers.#.mlp.up_proj.weight", "layers.#.gate_up_proj.weight", 1},
      {"layers.#.mlp.gate_proj.bias", "layers.#.gate_up_proj.bias", 0},
      {"layers.#.mlp.up_proj.bias", "layers.#.gate_up_proj.bias", 1},
      {"layers.#.mlp.down_proj.weight", "layers.#.down_proj.weight"},
      {"layers.#.mlp.down_proj.bias", "layers.#.down_proj.bias"},
      {"layers.#.self_attn.q_norm.weight", "layers.#.q_norm.weight"},
      {"layers.#.self_attn.k_norm.weight", "layers.#.k_norm.weight"},
  };
  return names;
}
// <<< task 2.3

const ModelFamily& llama_family() {
  static const ModelFamily family{"LlamaForCausalLM", "llama", read_llama_config, llama_tensor_names()};
  return family;
}

}  // namespace ladder

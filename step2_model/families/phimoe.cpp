// Phi-3.5-MoE (Abdin et al., 2024, arXiv 2404.14219): Mixtral's layers and names with LayerNorm in place of RMSNorm,
// biases in attention and head, LongRoPE, and a router of its own kind.
#include <vector>

#include "step1_layers/core/error.h"
#include "step2_model/families/family.h"

namespace ladder {
namespace {

void read_phimoe_config(const ConfigObject& config, DecoderSpec& spec) {
  read_head_dim(config, spec, 0);
  read_num_kv_heads(config, spec, 8);
  refuse_sliding_window(config, spec);
  spec.norm = NormKind::layer_norm;
  if (!config.has("rms_norm_eps")) spec.norm_eps = 1e-5;  // LayerNorm's, in spite of its name
  spec.qkv_bias = spec.o_bias = config.boolean("attention_bias", false);
  spec.lm_head_bias = config.boolean("lm_head_bias", false);
  LADDER_CHECK(!spec.lm_head_bias || !spec.tie_word_embeddings,
               "{}: true is not supported beside tie_word_embeddings", config.name("lm_head_bias"));
  ExpertsSpec& experts = spec.experts;
  experts.num_experts = config.integer("num_local_experts", 2, 1 << 14, 16);
  experts.intermediate_size = spec.intermediate_size;
  experts.rule.score = RouterScore::sparsemixer;
  experts.rule.top_k = config.integer("num_experts_per_tok", 2, 2, 2);  // sparsemixer chooses two
  experts.rule.jitter = config.number("router_jitter_noise", 0.01);
  LADDER_CHECK(experts.rule.jitter >= 0 && experts.rule.jitter <= 1,
               "{}: expected a number in [0, 1], found {}", config.name("router_jitter_noise"),
               experts.rule.jitter);
  experts.layers.assign(static_cast<size_t>(spec.num_layers), true);
}

std::span<const TensorName> phimoe_tensor_names() {
  static const std::vector<TensorName> names = [] {
    const std::span<const TensorName> mixtral = mixtral_tensor_names();
    std::vector<TensorName> all(mixtral.begin(), mixtral.end());
    for (const TensorName& name : {
             TensorName{"norm.bias", "norm.bias"},
             TensorName{"lm_head.bias", "lm_head.bias"},
             TensorName{"layers.#.input_layernorm.bias", "layers.#.input_layernorm.bias"},
             TensorName{"layers.#.post_attention_layernorm.bias", "layers.#.post_attention_layernorm.bias"},
         })
      all.push_back(name);
    return all;
  }();
  return names;
}

}  // namespace

// The published config says PhiMoE, transformers writes Phimoe.
const ModelFamily& phimoe_family() {
  static const ModelFamily family{"PhiMoEForCausalLM",   "phimoe", read_phimoe_config,
                                  phimoe_tensor_names(), true,     "PhimoeForCausalLM"};
  return family;
}

}  // namespace ladder

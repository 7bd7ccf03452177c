#include "step2_model/families/family.h"

namespace ladder {
namespace {

void read_qwen2_moe_config(const ConfigObject& config, DecoderSpec& spec) {
  read_head_dim(config, spec, 0);
  read_num_kv_heads(config, spec, 16);
  spec.qkv_bias = config.boolean("qkv_bias", true);
  read_qwen_experts(config, spec, 60, 4, 1408);
  if (spec.experts.num_experts > 0)
    spec.experts.shared_intermediate_size =
        config.integer("shared_expert_intermediate_size", 1, 1 << 20, 5632);
}

}  // namespace

const ModelFamily& qwen2_moe_family() {
  static const ModelFamily family{"Qwen2MoeForCausalLM", "qwen2_moe", read_qwen2_moe_config,
                                  qwen_moe_tensor_names(), true};
  return family;
}

}  // namespace ladder

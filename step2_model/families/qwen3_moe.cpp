#include "step2_model/families/family.h"

namespace ladder {
namespace {

void read_qwen3_moe_config(const ConfigObject& config, DecoderSpec& spec) {
  read_head_dim(config, spec, 0);
  read_num_kv_heads(config, spec, 4);
  spec.qkv_bias = spec.o_bias = config.boolean("attention_bias", false);  // all four projections
  spec.qk_norm = true;
  read_qwen_experts(config, spec, 128, 8, 768);
}

}  // namespace

const ModelFamily& qwen3_moe_family() {
  static const ModelFamily family{"Qwen3MoeForCausalLM", "qwen3_moe", read_qwen3_moe_config,
                                  qwen_moe_tensor_names(), true};
  return family;
}

}  // namespace ladder

#include "step2_model/families/family.h"

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {
namespace {

// >>> task 2.1.spec: Qwen3's own fields
void read_qwen3_config(const ConfigObject& config, DecoderSpec& spec) {
  read_head_dim(config, spec, 128);  // hidden_size / num_attention_heads is wrong for the small models
  read_num_kv_heads(config, spec, 32);
  spec.qkv_bias = spec.o_bias = config.boolean("attention_bias", false);  // all four projections
  spec.mlp_bias = false;
  spec.qk_norm = true;
}
// <<< task 2.1.spec

}  // namespace

const ModelFamily& qwen3_family() {
  static const ModelFamily family{"Qwen3ForCausalLM", "qwen3", read_qwen3_config, llama_tensor_names()};
  return family;
}

}  // namespace ladder

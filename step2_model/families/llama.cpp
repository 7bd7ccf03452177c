#include "step2_model/families/family.h"

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {
namespace {

// >>> task 2.1.spec: Llama's own fields
void read_llama_config(const ConfigObject& config, DecoderSpec& spec) {
  read_head_dim(config, spec, 0);
  read_num_kv_heads(config, spec, 0);
  spec.qkv_bias = spec.o_bias = config.boolean("attention_bias", false);  // all four projections
  spec.mlp_bias = config.boolean("mlp_bias", false);
  spec.qk_norm = false;
}
// <<< task 2.1.spec

}  // namespace

const ModelFamily& llama_family() {
  static const ModelFamily family{"LlamaForCausalLM", "llama", read_llama_config, llama_tensor_names()};
  return family;
}

}  // namespace ladder

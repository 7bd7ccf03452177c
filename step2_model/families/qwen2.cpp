#include "step2_model/families/family.h"

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {
namespace {

// >>> task 2.1.spec: Qwen2's own fields
void read_qwen2_config(const ConfigObject& config, DecoderSpec& spec) {
  read_head_dim(config, spec, 0);
  read_num_kv_heads(config, spec, 32);
  spec.qkv_bias = true;  // part of the architecture, not of the config; o has none
  spec.o_bias = false;
  spec.mlp_bias = false;
  spec.qk_norm = false;
}
// <<< task 2.1.spec

}  // namespace

const ModelFamily& qwen2_family() {
  static const ModelFamily family{"Qwen2ForCausalLM", "qwen2", read_qwen2_config, llama_tensor_names()};
  return family;
}

}  // namespace ladder

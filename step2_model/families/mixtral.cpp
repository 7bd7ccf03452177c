#include <vector>

#include "step2_model/families/family.h"

namespace ladder {

namespace {

void read_mixtral_config(const ConfigObject& config, DecoderSpec& spec) {
  read_head_dim(config, spec, 0);
  read_num_kv_heads(config, spec, 8);
  refuse_sliding_window(config, spec);
  spec.experts.num_experts = config.integer("num_local_experts", 1, 1 << 14, 8);
  spec.experts.rule.top_k = config.integer("num_experts_per_tok", 1, spec.experts.num_experts, 2);
  spec.experts.rule.normalize = true;
  spec.experts.intermediate_size = spec.intermediate_size;
  spec.experts.layers.assign(static_cast<size_t>(spec.num_layers), true);
}

}  // namespace

std::span<const TensorName> mixtral_tensor_names() {
  static const std::vector<TensorName> names = [] {
    const std::span<const TensorName> dense = llama_tensor_names();
    std::vector<TensorName> all(dense.begin(), dense.end());
    for (
        const TensorName& name : {
            TensorName{"layers.#.block_sparse_moe.gate.weight", "layers.#.router.weight"},
            TensorName{"layers.#.block_sparse_moe.experts.@.w1.*", "layers.#.experts.gate_up.*", 0, 2},
            TensorName{"layers.#.block_sparse_moe.experts.@.w3.*", "layers.#.experts.gate_up.*", 1, 2},
            TensorName{"layers.#.block_sparse_moe.experts.@.w2.*", "layers.#.experts.down.*"},
            // Programs that quantize write them as they find them in newer transformers: llm-compressor, GPTQModel.
            TensorName{"layers.#.block_sparse_moe.experts.@.gate_proj.*", "layers.#.experts.gate_up.*", 0, 2},
            TensorName{"layers.#.block_sparse_moe.experts.@.up_proj.*", "layers.#.experts.gate_up.*", 1, 2},
            TensorName{"layers.#.block_sparse_moe.experts.@.down_proj.*", "layers.#.experts.down.*"},
            TensorName{"layers.#.mlp.gate.weight", "layers.#.router.weight"},
            TensorName{"layers.#.mlp.experts.@.gate_proj.*", "layers.#.experts.gate_up.*", 0, 2},
            TensorName{"layers.#.mlp.experts.@.up_proj.*", "layers.#.experts.gate_up.*", 1, 2},
            TensorName{"layers.#.mlp.experts.@.down_proj.*", "layers.#.experts.down.*"},
        })
      all.push_back(name);
    return all;
  }();
  return names;
}

const ModelFamily& mixtral_family() {
  static const ModelFamily family{"MixtralForCausalLM", "mixtral", read_mixtral_config,
                                  mixtral_tensor_names(), true};
  return family;
}

}  // namespace ladder

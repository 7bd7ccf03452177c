#pragma once
// What differs from one model family to the next: how its config.json reads (task 2.1, a file per family here)
// and how its tensors are called (task 2.3, tensor_names.cpp). What a DecoderSpec can say is shared; a family
// with another kind of layer needs work in decoder/ too.
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "step2_model/config/config_file.h"
#include "step2_model/decoder/decoder_spec.h"

namespace ladder {

// One name of a checkpoint and the parameter (and its part) that it fills. In both, '#' stands for the layer's
// number and '*' for the name of a linear's parameter ("weight", "bias", what a linear method declares). In the
// checkpoint's, '@' stands for the number of an expert, whose parts follow those of the expert before in one parameter.
// Checkpoints of a bare model have the names without the leading "model.".
struct TensorName {
  std::string_view checkpoint;  // "layers.#.self_attn.k_proj.weight"
  std::string_view parameter;   // "layers.#.qkv_proj.weight"
  int part = 0;                 // with '@': of one expert
  int parts_per_expert = 1;     // with '@'
};

// Where a checkpoint tensor goes.
struct TensorTarget {
  std::string parameter;  // "layers.3.qkv_proj.weight"
  int part = 0;
  int64_t layer = -1;  // -1: not inside a layer
};

struct ModelFamily {
  std::string_view architecture;  // "Qwen3ForCausalLM"
  std::string_view model_type;    // "qwen3"
  // Fills the fields that families read differently: head_dim, num_kv_heads, biases, norms. The common ones
  // (sizes, eps) are already there. parse_decoder_spec checks the result.
  void (*read_config)(const ConfigObject& config, DecoderSpec& spec);
  std::span<const TensorName> tensor_names;
  bool has_experts = false;           // num_experts and its like mean something
  std::string_view also_called = {};  // another name of the architecture
  // How it calls what nearly all call so.
  const char* intermediate_size_key = "intermediate_size";
  const char* activation_key = "hidden_act";
  const char* default_activation = "silu";
};

const ModelFamily& qwen3_family();
const ModelFamily& qwen2_family();
const ModelFamily& llama_family();
const ModelFamily& mixtral_family();
const ModelFamily& qwen2_moe_family();
const ModelFamily& qwen3_moe_family();
const ModelFamily& phimoe_family();
const ModelFamily& opt_family();
std::span<const ModelFamily* const> all_families();

// By the name in config.json's "architectures". Error: unknown; lists the known ones.
const ModelFamily& family_of(std::string_view architecture);

// By the first row of tensor_names that fits. '#' and '@' stand for a number without sign and leading zeros, '*' (at a
// pattern's end) for a name that is not empty and has no dot. nullopt: the family has no tensor of this name.
std::optional<TensorTarget> find_tensor_target(const ModelFamily& family, std::string_view checkpoint_name);
// The other direction, for messages: the checkpoint name that fills this part of a parameter, with the leading
// "model.", which lm_head.weight alone never has. The parameter's own name where no row fits.
std::string checkpoint_name_of(const ModelFamily& family, std::string_view parameter, int part);

// The names that all three families share: a pre-norm decoder with separate q, k, v, gate and up projections.
std::span<const TensorName> llama_tensor_names();

// The names of Qwen's mixtures of experts: llama_tensor_names, a router, the experts and the shared one.
std::span<const TensorName> qwen_moe_tensor_names();

// Those of Mixtral: llama_tensor_names, the router and the experts below block_sparse_moe.
std::span<const TensorName> mixtral_tensor_names();

// Qwen's fields of them: num_experts, num_experts_per_tok, moe_intermediate_size, norm_topk_prob; a layer has experts
// unless mlp_only_layers names it or decoder_sparse_step leaves it out.
void read_qwen_experts(const ConfigObject& config, DecoderSpec& spec, int64_t num_experts, int64_t top_k,
                       int64_t width);
// A window that is as long as the model's longest text or longer is none. Error: a shorter one.
void refuse_sliding_window(const ConfigObject& config, const DecoderSpec& spec);

// A field that families read the same way but with other defaults. 0: as many as num_attention_heads.
void read_num_kv_heads(const ConfigObject& config, DecoderSpec& spec, int64_t default_value);
// default_value 0: hidden_size / num_attention_heads. Error: that is not a whole number.
void read_head_dim(const ConfigObject& config, DecoderSpec& spec, int64_t default_value);

}  // namespace ladder

// Task 2.3: which parameter, and which part of it, a checkpoint's tensor fills.
#include <algorithm>
#include <charconv>
#include <vector>

#include "step2_model/families/family.h"

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {
namespace {

constexpr std::string_view kModelPrefix = "model.";
constexpr int64_t kMaxParts = 1 << 24;  // of a parameter: more is a damaged name

// What the wildcards of a pattern stand for in a name.
struct Wildcards {
  int64_t layer = -1;          // '#'; -1: the pattern has none
  int64_t expert = 0;          // '@'
  std::string_view parameter;  // '*'
};

}  // namespace

std::span<const TensorName> llama_tensor_names() {
  static constexpr TensorName names[] = {
      {"embed_tokens.weight", "embed_tokens.weight"},
      {"norm.weight", "norm.weight"},
      {"lm_head.*", "lm_head.*"},
      {"layers.#.input_layernorm.weight", "layers.#.input_layernorm.weight"},
      {"layers.#.post_attention_layernorm.weight", "layers.#.post_attention_layernorm.weight"},
      {"layers.#.self_attn.q_proj.*", "layers.#.qkv_proj.*", 0},
      {"layers.#.self_attn.k_proj.*", "layers.#.qkv_proj.*", 1},
      {"layers.#.self_attn.v_proj.*", "layers.#.qkv_proj.*", 2},
      {"layers.#.self_attn.o_proj.*", "layers.#.o_proj.*"},
      {"layers.#.mlp.gate_proj.*", "layers.#.gate_up_proj.*", 0},
      {"layers.#.mlp.up_proj.*", "layers.#.gate_up_proj.*", 1},
      {"layers.#.mlp.down_proj.*", "layers.#.down_proj.*"},
      {"layers.#.self_attn.q_norm.weight", "layers.#.q_norm.weight"},
      {"layers.#.self_attn.k_norm.weight", "layers.#.k_norm.weight"},
  };
  return names;
}

std::span<const TensorName> qwen_moe_tensor_names() {
  static const std::vector<TensorName> names = [] {
    const std::span<const TensorName> dense = llama_tensor_names();
    std::vector<TensorName> all(dense.begin(), dense.end());
    for (const TensorName& name : {
             TensorName{"layers.#.mlp.gate.weight", "layers.#.router.weight"},
             TensorName{"layers.#.mlp.experts.@.gate_proj.*", "layers.#.experts.gate_up.*", 0, 2},
             TensorName{"layers.#.mlp.experts.@.up_proj.*", "layers.#.experts.gate_up.*", 1, 2},
             TensorName{"layers.#.mlp.experts.@.down_proj.*", "layers.#.experts.down.*"},
             TensorName{"layers.#.mlp.shared_expert.gate_proj.*", "layers.#.shared_expert.gate_up_proj.*", 0},
             TensorName{"layers.#.mlp.shared_expert.up_proj.*", "layers.#.shared_expert.gate_up_proj.*", 1},
             TensorName{"layers.#.mlp.shared_expert.down_proj.*", "layers.#.shared_expert.down_proj.*"},
             TensorName{"layers.#.mlp.shared_expert_gate.weight", "layers.#.shared_expert_gate.weight"},
         })
      all.push_back(name);
    return all;
  }();
  return names;
}

// >>> task 2.3.names: finding a name in the table by its pattern, in both directions
namespace {

// A number without sign and leading zeros at the beginning of `name`, which is cut off.
std::optional<int64_t> take_number(std::string_view& name) {
  const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  if (digits == 0 || (digits > 1 && name[0] == '0')) return std::nullopt;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + digits, number);
  if (error != std::errc() || end != name.data() + digits) return std::nullopt;
  name.remove_prefix(digits);
  return number;
}

// '#' and '@' match a number, '*' (only at the end) a name without a dot.
std::optional<Wildcards> match(std::string_view pattern, std::string_view name) {
  Wildcards found;
  for (size_t at; (at = pattern.find_first_of("#@")) != std::string_view::npos;) {
    if (!name.starts_with(pattern.substr(0, at))) return std::nullopt;
    name.remove_prefix(at);
    const auto number = take_number(name);
    if (!number) return std::nullopt;
    (pattern[at] == '#' ? found.layer : found.expert) = *number;
    pattern.remove_prefix(at + 1);
  }
  if (pattern.ends_with('*')) {
    pattern.remove_suffix(1);
    if (!name.starts_with(pattern)) return std::nullopt;
    found.parameter = name.substr(pattern.size());
    if (found.parameter.empty() || found.parameter.find('.') != std::string_view::npos) return std::nullopt;
  } else if (pattern != name) {
    return std::nullopt;
  }
  return found;
}

std::string filled(std::string_view pattern, const Wildcards& wildcards) {
  std::string name;
  for (const char c : pattern) {
    if (c == '#')
      name += std::to_string(wildcards.layer);
    else if (c == '@')
      name += std::to_string(wildcards.expert);
    else if (c == '*')
      name += wildcards.parameter;
    else
      name += c;
  }
  return name;
}

}  // namespace

std::optional<TensorTarget> find_tensor_target(const ModelFamily& family, std::string_view checkpoint_name) {
  if (checkpoint_name.starts_with(kModelPrefix)) checkpoint_name.remove_prefix(kModelPrefix.size());
  for (const TensorName& entry : family.tensor_names)
    if (const auto found = match(entry.checkpoint, checkpoint_name)) {
      if (found->expert > kMaxParts / entry.parts_per_expert) return std::nullopt;
      const int64_t part = found->expert * entry.parts_per_expert + entry.part;
      return TensorTarget{filled(entry.parameter, *found), static_cast<int>(part), found->layer};
    }
  return std::nullopt;
}

std::string checkpoint_name_of(const ModelFamily& family, std::string_view parameter, int part) {
  for (const TensorName& entry : family.tensor_names) {
    const bool of_expert = entry.checkpoint.find('@') != std::string_view::npos;
    if (entry.part != (of_expert ? part % entry.parts_per_expert : part)) continue;
    auto found = match(entry.parameter, parameter);
    if (!found) continue;
    if (of_expert) found->expert = part / entry.parts_per_expert;
    const bool bare = entry.checkpoint.starts_with("lm_head.");  // outside of the model proper
    return (bare ? "" : std::string(kModelPrefix)) + filled(entry.checkpoint, *found);
  }
  return std::string(parameter);
}
// <<< task 2.3.names

}  // namespace ladder

// Task 2.3: which parameter, and which part of it, a checkpoint's tensor fills.
#include <algorithm>
#include <charconv>

#include "step2_model/families/family.h"

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {
namespace {

constexpr std::string_view kModelPrefix = "model.";

// What the wildcards of a pattern stand for in a name.
struct Wildcards {
  int64_t layer = -1;          // '#'; -1: the pattern has none
  std::string_view parameter;  // '*'
};

}  // namespace

std::span<const TensorName> llama_tensor_names() {
  static constexpr TensorName names[] = {
      {"embed_tokens.weight", "embed_tokens.weight"},
      {"norm.weight", "norm.weight"},
      {"lm_head.weight", "lm_head.weight"},
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

// >>> task 2.3.names: finding a name in the table by its pattern, in both directions
namespace {

// '#' matches a number without sign and leading zeros, '*' (only at the end) a name without a dot.
std::optional<Wildcards> match(std::string_view pattern, std::string_view name) {
  Wildcards found;
  if (const size_t hash = pattern.find('#'); hash != std::string_view::npos) {
    if (!name.starts_with(pattern.substr(0, hash))) return std::nullopt;
    name.remove_prefix(hash);
    pattern.remove_prefix(hash + 1);
    const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    if (digits == 0 || (digits > 1 && name[0] == '0')) return std::nullopt;
    const auto [end, error] = std::from_chars(name.data(), name.data() + digits, found.layer);
    if (error != std::errc() || end != name.data() + digits) return std::nullopt;
    name.remove_prefix(digits);
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
    if (const auto found = match(entry.checkpoint, checkpoint_name))
      return TensorTarget{filled(entry.parameter, *found), entry.part, found->layer};
  return std::nullopt;
}

std::string checkpoint_name_of(const ModelFamily& family, std::string_view parameter, int part) {
  for (const TensorName& entry : family.tensor_names) {
    const auto found = entry.part == part ? match(entry.parameter, parameter) : std::nullopt;
    if (!found) continue;
    const bool bare = entry.checkpoint == "lm_head.weight";  // outside of the model proper
    return (bare ? "" : std::string(kModelPrefix)) + filled(entry.checkpoint, *found);
  }
  return std::string(parameter);
}
// <<< task 2.3.names

}  // namespace ladder

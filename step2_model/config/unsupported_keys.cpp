#include <algorithm>

#include "step1_layers/core/error.h"
#include "step2_model/config/config.h"

namespace ladder {
namespace {

struct UnsupportedKey {
  std::string_view key;
  double neutral;            // the number that leaves the mathematics alone
  std::string_view meaning;  // what the key would ask for
};

constexpr std::string_view kExperts = "experts";  // which some families have

// null, false, an empty list or object, and the neutral number are harmless everywhere.
constexpr UnsupportedKey kUnsupported[] = {
    {"attn_logit_softcapping", 0, "soft-capped attention scores"},
    {"final_logit_softcapping", 0, "soft-capped logits"},
    {"query_pre_attn_scalar", 0, "another attention scale"},
    {"attention_multiplier", 0, "another attention scale"},
    {"embedding_multiplier", 1, "scaled embeddings"},
    {"scale_emb", 1, "scaled embeddings"},
    {"residual_multiplier", 1, "a scaled residual"},
    {"scale_depth", 0, "a scaled residual"},
    {"logits_scaling", 1, "scaled logits"},
    {"logit_scale", 1, "scaled logits"},
    {"clip_qkv", 0, "clipped q, k and v"},
    {"alibi", 0, "ALiBi positions"},
    {"attention_chunk_size", 0, "chunked attention"},
    {"no_rope_layers", 0, "layers without rotary embedding"},
    {"num_experts", 0, kExperts},
    {"num_local_experts", 0, kExperts},
    {"n_routed_experts", 0, kExperts},
    {"kv_lora_rank", 0, "latent attention"},
    {"cross_attention_layers", 0, "cross attention"},
    {"add_cross_attention", 0, "cross attention"},
    {"is_encoder_decoder", 0, "an encoder"},
    {"pruned_heads", 0, "pruned heads"},
};

bool is_neutral(const Json& value, double neutral) {
  if (value.is_null() || value == false) return true;
  if (value.is_number()) return value.get<double>() == neutral;
  return (value.is_array() || value.is_object()) && value.empty();
}

// Whether one of the keys of the rotary embedding asks for another kind than the standard one.
bool stretches_rope(const ConfigObject& config) {
  for (const char* key : {"rope_scaling", "rope_parameters"})
    if (const Json* rope = config.find(key); rope != nullptr && rope->is_object())
      for (const char* kind : {"rope_type", "type"})
        if (rope->contains(kind) && !(*rope)[kind].is_null() && (*rope)[kind] != "default") return true;
  return false;
}

}  // namespace

// >>> task 2.1.spec: refuse what would change the mathematics
void refuse_unsupported_keys(const ConfigObject& config, int64_t num_layers, bool has_experts) {
  for (const UnsupportedKey& entry : kUnsupported) {
    if (has_experts && entry.meaning == kExperts) continue;
    const auto member = config.json().find(std::string(entry.key));
    LADDER_CHECK(member == config.json().end() || is_neutral(*member, entry.neutral),
                 "{}: {} ({}) is not supported", config.name(entry.key), json_brief(*member), entry.meaning);
  }
  if (const Json* types = config.find("layer_types")) {
    LADDER_CHECK(types->is_array() && static_cast<int64_t>(types->size()) == num_layers,
                 "{}: expected a list of {} (num_hidden_layers) kinds, found {}", config.name("layer_types"),
                 num_layers, json_brief(*types));
    for (const Json& type : *types)
      LADDER_CHECK(type == "full_attention", "{}: {} is not supported, expected full_attention",
                   config.name("layer_types"), json_brief(type));
  } else if (config.boolean("use_sliding_window", false)) {
    // Without layer_types, transformers gives a window to the layers from max_window_layers on. An absent
    // sliding_window is one of 4096 tokens; only null is none. One as long as the longest text hides nothing,
    // but a rotary embedding for longer texts leaves none that is.
    const auto window = config.json().find("sliding_window");
    const bool has_window = window == config.json().end() || !window->is_null();
    const bool hides =
        has_window && (stretches_rope(config) || config.integer("sliding_window", 0, INT64_MAX, 4096) <
                                                     config.integer("max_position_embeddings", 1, INT64_MAX));
    const int64_t first = config.integer("max_window_layers", 0, INT64_MAX, 28);
    LADDER_CHECK(!hides || first >= num_layers,
                 "{}: true (sliding-window attention from layer {} on) is not supported, expected false",
                 config.name("use_sliding_window"), first);
  }
}
// <<< task 2.1.spec

}  // namespace ladder

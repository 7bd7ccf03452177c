#include "step2_model/families/family.h"

#include "step1_layers/core/error.h"

namespace ladder {
namespace {

constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxExperts = 1 << 14, kMaxExpertWidth = 1 << 20;

}  // namespace

std::span<const ModelFamily* const> all_families() {
  static const ModelFamily* const families[] = {&qwen3_family(),   &qwen2_family(),     &llama_family(),
                                                &mixtral_family(), &qwen2_moe_family(), &qwen3_moe_family(),
                                                &phimoe_family(),  &opt_family()};
  return families;
}

const ModelFamily& family_of(std::string_view architecture) {
  std::string known;
  for (const ModelFamily* family : all_families()) {
    if (family->architecture == architecture ||
        (!family->also_called.empty() && family->also_called == architecture))
      return *family;
    known += (known.empty() ? "" : ", ") + std::string(family->architecture);
  }
  fail("unknown architecture {}, expected one of {}", json_brief(Json(std::string(architecture))), known);
}

void read_num_kv_heads(const ConfigObject& config, DecoderSpec& spec, int64_t default_value) {
  // An explicit null means "as many as query heads" in every family.
  const bool is_null = config.json().contains("num_key_value_heads") && !config.has("num_key_value_heads");
  if (default_value == 0 || is_null) default_value = spec.num_heads;
  spec.num_kv_heads = config.integer("num_key_value_heads", 1, spec.num_heads, default_value);
  LADDER_CHECK(spec.num_kv_heads <= spec.num_heads && spec.num_heads % spec.num_kv_heads == 0,
               "{}: expected a divisor of num_attention_heads ({}), found {}{}",
               config.name("num_key_value_heads"), spec.num_heads, spec.num_kv_heads,
               config.has("num_key_value_heads") ? "" : " (the family's default)");
}

void read_head_dim(const ConfigObject& config, DecoderSpec& spec, int64_t default_value) {
  if (!config.has("head_dim") && default_value == 0) {
    LADDER_CHECK(spec.hidden_size % spec.num_heads == 0,
                 "{}: {} is not divisible by num_attention_heads ({}), and there is no head_dim",
                 config.name("hidden_size"), spec.hidden_size, spec.num_heads);
    default_value = spec.hidden_size / spec.num_heads;
  }
  spec.head_dim = config.integer("head_dim", 2, kMaxHeadDim, default_value);
  LADDER_CHECK(spec.head_dim >= 2 && spec.head_dim <= kMaxHeadDim && spec.head_dim % 2 == 0,
               "{}: expected an even number up to {} (rotary embedding turns pairs), found {}",
               config.name("head_dim"), kMaxHeadDim, spec.head_dim);
}

void read_qwen_experts(const ConfigObject& config, DecoderSpec& spec, int64_t num_experts, int64_t top_k,
                       int64_t width) {
  ExpertsSpec& experts = spec.experts;
  // transformers 5 writes num_local_experts.
  const char* key =
      config.has("num_experts") || !config.has("num_local_experts") ? "num_experts" : "num_local_experts";
  experts.num_experts = config.integer(key, 0, kMaxExperts, num_experts);
  if (experts.num_experts == 0) return;
  experts.rule.top_k = config.integer("num_experts_per_tok", 1, experts.num_experts, top_k);
  experts.rule.normalize = config.boolean("norm_topk_prob", false);
  experts.intermediate_size = config.integer("moe_intermediate_size", 1, kMaxExpertWidth, width);
  const int64_t step = config.integer("decoder_sparse_step", 1, INT32_MAX, 1);
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) experts.layers.push_back((layer + 1) % step == 0);
  if (const Json* dense = config.find("mlp_only_layers")) {
    LADDER_CHECK(dense->is_array(), "{}: expected a list of layers, found {}", config.name("mlp_only_layers"),
                 json_brief(*dense));
    for (const Json& layer : *dense)
      experts.layers[json_int(layer, config.name("mlp_only_layers"), 0, spec.num_layers - 1)] = false;
  }
}

void refuse_sliding_window(const ConfigObject& config, const DecoderSpec& spec) {
  const int64_t window = config.integer("sliding_window", 0, INT64_MAX, INT64_MAX);
  LADDER_CHECK(window >= spec.max_position_embeddings,
               "{}: {} is not supported, expected null or at least max_position_embeddings ({})",
               config.name("sliding_window"), window, spec.max_position_embeddings);
}

}  // namespace ladder

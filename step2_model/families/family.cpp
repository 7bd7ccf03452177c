#include "step2_model/families/family.h"

#include "step1_layers/core/error.h"

namespace ladder {
namespace {

constexpr int64_t kMaxHeadDim = 1024;

}  // namespace

std::span<const ModelFamily* const> all_families() {
  static const ModelFamily* const families[] = {&qwen3_family(), &qwen2_family(), &llama_family()};
  return families;
}

const ModelFamily& family_of(std::string_view architecture) {
  std::string known;
  for (const ModelFamily* family : all_families()) {
    if (family->architecture == architecture) return *family;
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

}  // namespace ladder

#include "step2_model/families/family.h"

#include <charconv>

#include "step1_layers/core/error.h"

namespace ladder {
namespace {

constexpr std::string_view kModelPrefix = "model.";
constexpr int64_t kMaxHeadDim = 1024;

// Matches a pattern whose '#' is a number without sign and leading zeros. The number goes to `layer`.
bool matches(std::string_view pattern, std::string_view name, int64_t& layer) {
  const size_t hash = pattern.find('#');
  if (hash == std::string_view::npos) return pattern == name;
  if (name.substr(0, hash) != pattern.substr(0, hash)) return false;
  const std::string_view rest = name.substr(hash);
  const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (digits == 0 || (digits > 1 && rest[0] == '0')) return false;
  if (rest.substr(digits) != pattern.substr(hash + 1)) return false;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + digits, layer);
  return error == std::errc() && end == rest.data() + digits;
}

std::string with_layer(std::string_view pattern, int64_t layer) {
  const size_t hash = pattern.find('#');
  if (hash == std::string_view::npos) return std::string(pattern);
  return fmt::format("{}{}{}", pattern.substr(0, hash), layer, pattern.substr(hash + 1));
}

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

std::optional<TensorTarget> find_tensor_target(const ModelFamily& family, std::string_view checkpoint_name) {
  if (checkpoint_name.substr(0, kModelPrefix.size()) == kModelPrefix)
    checkpoint_name.remove_prefix(kModelPrefix.size());
  for (const TensorName& entry : family.tensor_names) {
    int64_t layer = -1;
    if (matches(entry.checkpoint, checkpoint_name, layer))
      return TensorTarget{with_layer(entry.parameter, layer), entry.part, layer};
  }
  return std::nullopt;
}

std::string checkpoint_name_of(const ModelFamily& family, std::string_view parameter, int part) {
  for (const TensorName& entry : family.tensor_names) {
    int64_t layer = -1;
    if (entry.part != part || !matches(entry.parameter, parameter, layer)) continue;
    const bool bare = entry.checkpoint == "lm_head.weight";  // outside of the model proper
    return (bare ? "" : std::string(kModelPrefix)) + with_layer(entry.checkpoint, layer);
  }
  return std::string(parameter);
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

// "quant_method": "compressed-tensors" (github.com/vllm-project/compressed-tensors, quantization/quant_*.py):
//
//   format          of all groups, or "mixed-precision": each group's own
//   config_groups   {name: {targets, weights, input_activations, output_activations, format}}, or {preset: targets}
//   ignore          targets that are dense although a group names them
//   sparsity_config {format, targets, ignore}: linears that are kept in sparse-24-bitmask, quantized or not
//   kv_cache_scheme arguments for keys and values, with a strategy of its own: "attn_head"
#include <algorithm>

#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/config/presets.h"
#include "step8_advanced/quantization/config/read_config.h"

namespace ladder {
namespace {

ScaleStrategy read_strategy(const ConfigObject& config, std::optional<int64_t> group_size) {
  const std::string name = lower_string(config, "strategy", "");
  if (name == "tensor") return ScaleStrategy::tensor;
  if (name == "channel") return ScaleStrategy::channel;
  if (name == "group" || name == "tensor_group") return ScaleStrategy::group;
  if (name == "block") return ScaleStrategy::block;
  if (name == "token") return ScaleStrategy::token;
  LADDER_CHECK(!config.has("strategy"),
               "{}: expected tensor, channel, group, tensor_group, block or token, found {}",
               config.name("strategy"), json_brief(*config.find("strategy")));
  if (!group_size) return ScaleStrategy::tensor;
  LADDER_CHECK(*group_size != 0, "{}: expected -1 or more than 0, found 0", config.name("group_size"));
  return *group_size > 0 ? ScaleStrategy::group : ScaleStrategy::channel;
}

// [rows, columns], or as older files have it: "128x128".
void read_block(const ConfigObject& config, QuantizationArgs& args) {
  const Json* block = config.find("block_structure");
  LADDER_CHECK((block != nullptr) == (args.strategy == ScaleStrategy::block),
               "{}: expected with the strategy \"block\" and only there", config.name("block_structure"));
  if (block == nullptr) return;
  constexpr int64_t kMax = 1 << 20;
  if (block->is_string()) {
    const std::string text = block->get<std::string>();
    const size_t by = text.find('x');
    const auto side = [&](std::string_view digits) {
      LADDER_CHECK(!digits.empty() && digits.size() <= 6 &&
                       digits.find_first_not_of("0123456789") == std::string_view::npos,
                   "{}: expected two numbers as in \"128x128\", found {}", config.name("block_structure"),
                   json_brief(*block));
      return json_int(Json(std::stoll(std::string(digits))), config.name("block_structure"), 1, kMax);
    };
    args.block_rows = side(std::string_view(text).substr(0, by));
    args.block_columns = side(by == std::string::npos ? "" : std::string_view(text).substr(by + 1));
    return;
  }
  LADDER_CHECK(block->is_array() && block->size() == 2, "{}: expected [rows, columns], found {}",
               config.name("block_structure"), json_brief(*block));
  args.block_rows = json_int((*block)[0], config.name("block_structure"), 1, kMax);
  args.block_columns = json_int((*block)[1], config.name("block_structure"), 1, kMax);
}

ActivationOrder read_actorder(const ConfigObject& config) {
  const Json* value = config.find("actorder");
  if (value == nullptr) return ActivationOrder::none;
  if (value->is_boolean()) return value->get<bool>() ? ActivationOrder::group : ActivationOrder::none;
  const std::string name = lower_string(config, "actorder", "");
  if (name == "group" || name == "dynamic") return ActivationOrder::group;
  if (name == "weight" || name == "static") return ActivationOrder::weight;
  fail("{}: expected null, group or weight, found {}", config.name("actorder"), json_brief(*value));
}

ScaleFormat read_scale_dtype(const ConfigObject& config, ScaleFormat default_value) {
  std::string name = lower_string(config, "scale_dtype", "");
  if (name.empty()) return default_value;
  if (name.starts_with("torch.")) name = name.substr(6);
  if (name == "uint8" || name == "float8_e8m0fnu") return ScaleFormat::e8m0;
  if (name == "float8_e4m3fn") return ScaleFormat::e4m3;
  if (name == "float32") return ScaleFormat::f32;
  if (name == "bfloat16") return ScaleFormat::bf16;
  if (name == "float16") return ScaleFormat::f16;
  fail("{}: expected uint8, float8_e4m3fn, float32, bfloat16 or float16, found {}",
       config.name("scale_dtype"), json_brief(*config.find("scale_dtype")));
}

// Whether scales are made at run time. "local": those of groups are, the tensor's G is stored.
bool read_dynamic(const ConfigObject& config, bool is_nvfp4) {
  const Json* value = config.find("dynamic");
  if (value == nullptr) return false;
  if (!value->is_string()) return json_bool(*value, config.name("dynamic"));
  LADDER_CHECK(lower_string(config, "dynamic", "") == "local" && is_nvfp4,
               "{}: expected true, false, or with the strategy \"tensor_group\" local, found {}",
               config.name("dynamic"), json_brief(*value));
  return true;
}

QuantizationArgs read_arguments(const Json& json, const std::string& what, ScaleFormat default_scales) {
  const ConfigObject config(json, what);
  // What zero points are stored as and how scales were found tells a reader nothing.
  refuse_unknown_keys(
      config, {"num_bits", "type", "symmetric", "group_size", "strategy", "block_structure", "dynamic",
               "actorder", "scale_dtype", "zp_dtype", "observer", "observer_kwargs"});
  QuantizationArgs args;
  const std::string type = lower_string(config, "type", "int");
  LADDER_CHECK(type == "int" || type == "float", "{}: expected int or float, found {}", config.name("type"),
               json_brief(Json(type)));
  args.is_float = type == "float";
  args.num_bits = static_cast<int>(config.integer("num_bits", 2, 8, 8));
  LADDER_CHECK(!args.is_float || args.num_bits == 8 || args.num_bits == 4,
               "{}: floats have 8 or 4 bits, found {}", config.name("num_bits"), args.num_bits);
  args.symmetric = config.boolean("symmetric", true);
  LADDER_CHECK(args.symmetric || !args.is_float, "{}: floats have no zero point", config.name("symmetric"));

  std::optional<int64_t> group_size;
  if (config.has("group_size")) group_size = config.integer("group_size", -1, 1 << 20);
  args.strategy = read_strategy(config, group_size);
  if (args.strategy == ScaleStrategy::group) {
    LADDER_CHECK(group_size && *group_size > 0, "{}: the strategy \"group\" needs one above 0",
                 config.name("group_size"));
    args.group_size = *group_size;
  } else {
    LADDER_CHECK(!group_size || *group_size <= 0, "{}: expected with the strategy \"group\" only",
                 config.name("group_size"));
  }
  read_block(config, args);

  const bool is_nvfp4 = lower_string(config, "strategy", "") == "tensor_group";
  args.scale_format = read_scale_dtype(config, is_nvfp4 ? ScaleFormat::e4m3 : default_scales);
  LADDER_CHECK(is_nvfp4 == (args.scale_format == ScaleFormat::e4m3),
               "{}: float8_e4m3fn is for the strategy \"tensor_group\" and its only one",
               config.name("scale_dtype"));
  args.dynamic = read_dynamic(config, is_nvfp4);
  args.actorder = read_actorder(config);
  LADDER_CHECK(args.actorder != ActivationOrder::group || args.strategy == ScaleStrategy::group,
               "{}: \"group\" needs the strategy \"group\"", config.name("actorder"));
  return args;
}

QuantizationScheme read_scheme(const ConfigObject& group, ScaleFormat default_scales, bool is_mx) {
  const Json* weights = group.find("weights");
  LADDER_CHECK(weights != nullptr, "{}: missing: only activations that meet a quantized weight can be",
               group.name("weights"));
  QuantizationScheme scheme{read_arguments(*weights, group.name("weights"), default_scales), std::nullopt};
  LADDER_CHECK(!scheme.weights.dynamic, "{}: weights are not dynamic", group.name("weights"));
  LADDER_CHECK(scheme.weights.strategy != ScaleStrategy::token,
               "{}: the strategy \"token\" is for activations", group.name("weights"));
  const Json* inputs = group.find("input_activations");
  if (inputs == nullptr) return scheme;
  const std::string name = group.name("input_activations");
  const QuantizationArgs args = read_arguments(*inputs, name, is_mx ? ScaleFormat::e8m0 : ScaleFormat::f32);
  const bool at_run_time = args.strategy == ScaleStrategy::token || args.strategy == ScaleStrategy::group;
  LADDER_CHECK(at_run_time || args.strategy == ScaleStrategy::tensor,
               "{}: expected the strategy token, group or tensor", name);
  LADDER_CHECK(!at_run_time || args.dynamic, "{}: scales per token or group are dynamic", name);
  LADDER_CHECK(args.actorder == ActivationOrder::none, "{}: activations have no actorder", name);
  scheme.input_activations = args;
  return scheme;
}

StoredFormat read_format(const std::string& name, const std::string& what) {
  if (name == "int-quantized" || name == "float-quantized" || name == "naive-quantized")
    return StoredFormat::plain;
  if (name == "pack-quantized") return StoredFormat::packed;
  if (name == "nvfp4-pack-quantized") return StoredFormat::nvfp4;
  if (name == "mxfp4-pack-quantized" || name == "mxfp8-quantized") return StoredFormat::mx;
  fail(
      "{}: expected int-quantized, float-quantized, naive-quantized, pack-quantized, nvfp4-pack-quantized, "
      "mxfp4-pack-quantized or mxfp8-quantized, found {}",
      what, json_brief(Json(name)));
}

// The preset of nothing: its group has neither weights nor activations when it is written out.
constexpr std::string_view kUnquantized = "UNQUANTIZED";

QuantizationGroup left_dense(QuantizationGroup group, const std::string& what) {
  LADDER_CHECK(!group.targets.empty(), "{}: no targets", what);
  group.linear = {.format = StoredFormat::dense};
  return group;
}

QuantizationGroup read_group(const std::string& name, const Json& json, const ConfigObject& config,
                             const std::string& all_formats) {
  const std::string what = fmt::format("{}.{}", config.name("config_groups"), name.substr(0, 60));
  QuantizationGroup group;
  std::string format = all_formats;
  if (json.is_array()) {  // a preset's name and its targets
    const bool is_dense = name == kUnquantized;
    LADDER_CHECK(is_dense || is_preset(name), "{}: not a scheme of that name, expected one of {}, {}", what,
                 fmt::join(preset_names(), ", "), kUnquantized);
    if (!is_dense) group.linear.scheme = preset_scheme(name);
    for (const Json& target : json) group.targets.push_back(json_string(target, what));
    if (is_dense) return left_dense(std::move(group), what);
    if (format.empty()) {
      group.linear = stored_linear(group.linear.scheme, what);
      return group;
    }
  } else {
    const ConfigObject object(json, what);
    refuse_unknown_keys(object, {"targets", "weights", "input_activations", "output_activations", "format"});
    refuse_unless_empty(object, "output_activations", "rounding a layer's output is not supported");
    group.targets = string_list(object, "targets");
    if (!object.has("weights") && !object.has("input_activations")) return left_dense(std::move(group), what);
    format = object.string("format").value_or(format);
    LADDER_CHECK(!format.empty(), "{}: missing, and the file's is \"mixed-precision\" or missing too",
                 object.name("format"));
    const bool is_mx = format.starts_with("mxfp");
    group.linear.scheme = read_scheme(object, is_mx ? ScaleFormat::e8m0 : ScaleFormat::bf16, is_mx);
  }
  LADDER_CHECK(!group.targets.empty(), "{}: no targets", what);
  group.linear.format = read_format(format, what + ": format");
  group.linear.stored_scales = group.linear.scheme.weights.scale_format;
  check_stored(group.linear, what);
  const bool mx_bits = group.linear.format != StoredFormat::mx ||
                       format.starts_with(group.linear.scheme.weights.num_bits == 4 ? "mxfp4" : "mxfp8");
  LADDER_CHECK(mx_bits, "{}: {} with floats of {} bits", what, format, group.linear.scheme.weights.num_bits);
  return group;
}

// Without "sparse-24-bitmask" weights are stored whole, zeros and all.
TwoOfFourTargets read_sparsity(const ConfigObject& config) {
  refuse_unknown_keys(config, {"format", "targets", "ignore", "sparsity_structure", "global_sparsity",
                               "registry_requires_subclass"});
  const std::string format = lower_string(config, "format", "");
  if (format == "dense") return {};
  LADDER_CHECK(format == "sparse-24-bitmask", "{}: expected dense or sparse-24-bitmask, found {}",
               config.name("format"), json_brief(Json(format)));
  const std::string structure = lower_string(config, "sparsity_structure", "2:4");
  LADDER_CHECK(structure == "2:4", "{}: expected 2:4, found {}", config.name("sparsity_structure"),
               json_brief(Json(structure)));
  TwoOfFourTargets read{string_list(config, "targets"), string_list(config, "ignore")};
  LADDER_CHECK(!read.targets.empty(), "{}: no targets", config.name("targets"));
  return read;
}

}  // namespace

StoredKvCache parse_kv_cache_scheme(const Json& scheme, const std::string& what) {
  StoredKvCache cache;
  cache.per_head = lower_string(ConfigObject(scheme, what), "strategy", "") == "attn_head";
  Json arguments = scheme;
  if (cache.per_head) arguments["strategy"] = "tensor";  // of a head's numbers
  cache.args = read_arguments(arguments, what, ScaleFormat::bf16);
  LADDER_CHECK(cache.args.strategy == ScaleStrategy::tensor, "{}: expected the strategy tensor or attn_head",
               what);
  LADDER_CHECK(cache.args.symmetric, "{}: zero points of keys and values are not supported", what);
  LADDER_CHECK(cache.args.actorder == ActivationOrder::none, "{}: keys and values have no actorder", what);
  cache.args.scale_format = ScaleFormat::bf16;  // the tensors have a dtype of their own
  return cache;
}

ReadGroups read_compressed_tensors(const ConfigObject& config) {
  refuse_unknown_keys(config,
                      {"quant_method", "config_groups", "format", "ignore", "quantization_status",
                       "global_compression_ratio", "kv_cache_scheme", "sparsity_config", "transform_config",
                       "moe_sparsity_config", "run_compressed", "version", "provider"});
  refuse_unless_empty(config, "transform_config", "transforms are not supported");
  refuse_unless_empty(config, "moe_sparsity_config", "sparse experts are not supported");
  const std::string status = lower_string(config, "quantization_status", "compressed");
  LADDER_CHECK(status == "compressed" || status == "frozen", "{}: expected compressed, found {}",
               config.name("quantization_status"), json_brief(Json(status)));

  std::string format = config.string("format").value_or("");
  if (format == "mixed-precision") format.clear();
  // Where every group names its own it says nothing, and is known all the same; "dense" where nothing is rounded.
  if (!format.empty() && format != "dense") read_format(format, config.name("format"));
  ReadGroups read;
  read.ignored = string_list(config, "ignore");
  if (const Json* scheme = config.find("kv_cache_scheme"); scheme != nullptr && !scheme->empty())
    read.kv_cache = parse_kv_cache_scheme(*scheme, config.name("kv_cache_scheme"));
  const Json* sparsity = config.find("sparsity_config");
  const bool has_sparsity = sparsity != nullptr && !sparsity->empty();
  if (has_sparsity) read.two_of_four = read_sparsity(ConfigObject(*sparsity, config.name("sparsity_config")));
  // Nothing is quantized where only keys and values are, or weights are only sparse (kept whole, or not).
  const bool may_be_empty = read.kv_cache || has_sparsity || format == "dense";
  const Json none = Json::object();
  const Json& groups = may_be_empty && !config.has("config_groups")
                           ? none
                           : json_at(config.json(), "config_groups", config.name("config_groups"));
  LADDER_CHECK(groups.is_object() && (may_be_empty || !groups.empty()),
               "{}: expected groups by name, found {}", config.name("config_groups"), json_brief(groups));
  for (const auto& [name, json] : groups.items())
    read.groups.push_back(read_group(name, json, config, format));
  return read;
}

}  // namespace ladder

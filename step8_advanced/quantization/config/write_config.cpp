#include "step8_advanced/quantization/config/write_config.h"

#include <set>

#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/config/presets.h"
#include "step8_advanced/quantization/config/quantization_config.h"

namespace ladder {
namespace {

const char* strategy_name(const QuantizationArgs& args) {
  switch (args.strategy) {
    case ScaleStrategy::tensor:
      return "tensor";
    case ScaleStrategy::channel:
      return "channel";
    case ScaleStrategy::group:
      return args.scale_format == ScaleFormat::e4m3 ? "tensor_group" : "group";
    case ScaleStrategy::block:
      return "block";
    case ScaleStrategy::token:
      return "token";
  }
  return "";
}

}  // namespace

OrderedJson arguments_json(const QuantizationArgs& args) {
  OrderedJson json;
  json["num_bits"] = args.num_bits;
  json["type"] = args.is_float ? "float" : "int";
  json["symmetric"] = args.symmetric;
  json["group_size"] = args.strategy == ScaleStrategy::group ? OrderedJson(args.group_size) : OrderedJson();
  json["strategy"] = strategy_name(args);
  json["block_structure"] = args.strategy == ScaleStrategy::block
                                ? OrderedJson{args.block_rows, args.block_columns}
                                : OrderedJson();
  // NVFP4's activations: the scales of groups are made at run time, G is not.
  json["dynamic"] = args.dynamic && args.scale_format == ScaleFormat::e4m3 ? OrderedJson("local")
                                                                           : OrderedJson(args.dynamic);
  switch (args.actorder) {
    case ActivationOrder::none:
      json["actorder"] = nullptr;
      break;
    case ActivationOrder::group:
      json["actorder"] = "group";
      break;
    case ActivationOrder::weight:
      json["actorder"] = "weight";
      break;
  }
  // The model's dtype is null: compressed-tensors knows it from the tensors.
  json["scale_dtype"] = nullptr;
  if (args.scale_format == ScaleFormat::e4m3) json["scale_dtype"] = "torch.float8_e4m3fn";
  if (args.scale_format == ScaleFormat::e8m0) json["scale_dtype"] = "torch.uint8";
  return json;
}

std::string format_name(const StoredLinear& linear) {
  switch (linear.format) {
    case StoredFormat::plain:
      if (!linear.scheme.input_activations) return "naive-quantized";
      return linear.scheme.weights.is_float ? "float-quantized" : "int-quantized";
    case StoredFormat::packed:
      return "pack-quantized";
    case StoredFormat::nvfp4:
      return "nvfp4-pack-quantized";
    case StoredFormat::mx:
      return linear.scheme.weights.num_bits == 4 ? "mxfp4-pack-quantized" : "mxfp8-quantized";
    case StoredFormat::gptq:
      fail("gptq is not a format of compressed-tensors");
    case StoredFormat::awq:
      fail("awq is not a format of compressed-tensors");
    case StoredFormat::dense:
      fail("a linear that is not quantized has no format");
  }
  return "";
}

std::string describe(const std::optional<StoredLinear>& linear) {
  if (!linear) return "dense";
  if (linear->format == StoredFormat::dense) return "dense in sparse-24-bitmask";
  const QuantizationArgs& args = linear->scheme.weights;
  const bool foreign = linear->format == StoredFormat::gptq || linear->format == StoredFormat::awq;
  const char* method = linear->format == StoredFormat::gptq ? "gptq" : "awq";
  std::string text =
      fmt::format("{} with weights {}", foreign ? method : format_name(*linear), arguments_json(args).dump());
  if (linear->scheme.input_activations)
    text += " and activations " + arguments_json(*linear->scheme.input_activations).dump();
  if (linear->two_of_four) text += " in sparse-24-bitmask";
  return text;
}

std::string to_json(std::span<const QuantizationGroup> groups, std::span<const std::string> ignore,
                    const std::optional<StoredKvCache>& kv_cache) {
  OrderedJson config;
  config["quant_method"] = "compressed-tensors";
  std::set<std::string> formats;
  OrderedJson config_groups = OrderedJson::object();
  for (size_t i = 0; i < groups.size(); ++i) {
    const StoredLinear& linear = groups[i].linear;
    const std::string name = fmt::format("group_{}", i);
    check_stored(linear, name);
    LADDER_CHECK(!linear.scale_is_inverse, "{}: scales called weight_scale_inv are not compressed-tensors'",
                 name);
    OrderedJson& group = config_groups[name];
    group["targets"] = groups[i].targets;
    group["weights"] = arguments_json(linear.scheme.weights);
    group["input_activations"] =
        linear.scheme.input_activations ? arguments_json(*linear.scheme.input_activations) : OrderedJson();
    group["output_activations"] = nullptr;
    group["format"] = format_name(linear);
    formats.insert(format_name(linear));
  }
  LADDER_CHECK(!groups.empty(), "a quantization_config without groups");
  config["format"] = formats.size() == 1 ? *formats.begin() : "mixed-precision";
  config["quantization_status"] = "compressed";
  config["global_compression_ratio"] = nullptr;
  config["kv_cache_scheme"] = nullptr;
  if (kv_cache) {
    config["kv_cache_scheme"] = arguments_json(kv_cache->args);
    if (kv_cache->per_head) config["kv_cache_scheme"]["strategy"] = "attn_head";
  }
  config["config_groups"] = config_groups;
  config["ignore"] = std::vector<std::string>(ignore.begin(), ignore.end());
  return config.dump(2);
}

}  // namespace ladder

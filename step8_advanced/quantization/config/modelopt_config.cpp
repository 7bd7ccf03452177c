// "quant_method": "modelopt", NVIDIA's Model Optimizer (modelopt/torch/export/convert_hf_config.py): compressed-tensors' groups beside
// one word for all of it.
//
//   quant_algo       FP8: E4M3 with a scale for each tensor, inputs too. NVFP4: E2M1 in groups of 16, inputs too; W4A16_NVFP4:
//                    weights alone. All others are refused by name: they have tensors of their own (pre_quant_scale,
//                    svdquant_lora_a, ...)
//   config_groups    {name: {targets, weights, input_activations}}
//   ignore           names of modules, with * for any characters
//   kv_cache_scheme  as compressed-tensors has it
//
// Older folders say it in hf_quant_config.json alone, whose "quantization" has exclude_modules and kv_cache_quant_algo instead and no
// groups: step 2 reads that file where config.json has nothing.
#include <string_view>

#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/config/read_config.h"

namespace ladder {
namespace {

// As a target: a name is one already, * makes it a pattern.
std::string as_target(const std::string& wildcards) {
  if (wildcards.find('*') == std::string::npos) return wildcards;
  std::string pattern = "re:";
  for (const char c : wildcards) {
    const bool is_plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (c == '*')
      pattern += ".*";
    else
      pattern += is_plain ? std::string(1, c) : std::string("\\") + c;
  }
  return pattern + "$";
}

Json one_group(const Json& numbers, bool rounds_inputs) {
  Json group = {{"targets", {"Linear"}}, {"weights", numbers}};
  if (rounds_inputs) group["input_activations"] = numbers;
  return {{"group_0", group}};
}

// What compressed-tensors calls NVFP4's numbers: ModelOpt says floats of 4 bits in groups, and "dynamic": false of inputs, whose
// tensor's scale is stored.
Json as_tensor_group(Json groups) {
  for (auto& [_, group] : groups.items())
    for (const char* side : {"weights", "input_activations"})
      if (group.is_object() && group.contains(side) && group[side].is_object()) {
        group[side]["strategy"] = "tensor_group";
        if (side == std::string_view("input_activations")) group[side]["dynamic"] = "local";
      }
  return groups;
}

bool is_nvfp4(const QuantizationArgs& args) {
  return args.is_float && args.num_bits == 4 && args.scale_format == ScaleFormat::e4m3;
}

}  // namespace

ReadGroups read_modelopt(const ConfigObject& config, const std::string& what) {
  refuse_unknown_keys(config, {"quant_method", "quant_algo", "config_groups", "ignore", "kv_cache_scheme",
                               "producer", "exclude_modules", "kv_cache_quant_algo", "group_size"});
  const std::string algorithm = config.string("quant_algo").value_or("");
  const bool fp8 = algorithm == "FP8", rounds_inputs = algorithm != "W4A16_NVFP4";
  LADDER_CHECK(fp8 || algorithm == "NVFP4" || !rounds_inputs,
               "{}: expected FP8, NVFP4 or W4A16_NVFP4, found {}", config.name("quant_algo"),
               json_brief(Json(algorithm)));
  if (fp8)
    refuse_unless_empty(config, "group_size", "FP8 has a scale for each tensor");
  else if (config.has("group_size"))
    config.integer("group_size", 16, 16);
  Json same = {{"quant_method", "compressed-tensors"},
               {"format", fp8 ? "float-quantized" : "nvfp4-pack-quantized"}};
  for (const char* key : {"config_groups", "kv_cache_scheme"})
    if (const Json* value = config.find(key); value != nullptr) same[key] = *value;
  if (!config.has("config_groups"))
    same["config_groups"] = one_group(fp8 ? Json{{"num_bits", 8}, {"type", "float"}}
                                          : Json{{"num_bits", 4}, {"type", "float"}, {"group_size", 16}},
                                      rounds_inputs);
  if (!fp8) same["config_groups"] = as_tensor_group(same["config_groups"]);
  if (config.has("kv_cache_quant_algo")) {
    const std::string cache = config.string("kv_cache_quant_algo").value_or("");
    LADDER_CHECK(cache == "FP8", "{}: expected FP8, found {}", config.name("kv_cache_quant_algo"),
                 json_brief(Json(cache)));
    same["kv_cache_scheme"] = {{"num_bits", 8}, {"type", "float"}};
  }
  same["ignore"] = Json::array();
  for (const char* key : {"ignore", "exclude_modules"})
    for (const std::string& entry : string_list(config, key)) same["ignore"].push_back(as_target(entry));
  ReadGroups read = read_compressed_tensors(ConfigObject(same, what));
  for (QuantizationGroup& group : read.groups) {
    const QuantizationScheme& scheme = group.linear.scheme;
    if (!fp8) {
      const auto& inputs = scheme.input_activations;
      LADDER_CHECK(is_nvfp4(scheme.weights) && (rounds_inputs ? inputs && is_nvfp4(*inputs) : !inputs),
                   "{}: expected what {} is: floats of 4 bits in groups of 16, {}",
                   config.name("config_groups"), algorithm,
                   rounds_inputs ? "inputs too" : "inputs as they are");
      group.linear.scales_are_factors = true;
      continue;
    }
    LADDER_CHECK(scheme.weights.is_float && scheme.weights.strategy == ScaleStrategy::tensor &&
                     scheme.input_activations && !scheme.input_activations->dynamic,
                 "{}: expected what FP8 is: weights and inputs in floats of 8 bits with a scale each",
                 config.name("config_groups"));
  }
  return read;
}

}  // namespace ladder

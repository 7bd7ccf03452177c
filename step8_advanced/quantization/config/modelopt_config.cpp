// "quant_method": "modelopt", NVIDIA's Model Optimizer (modelopt/torch/export/convert_hf_config.py): compressed-tensors' groups beside
// one word for all of it.
//
//   quant_algo       FP8: E4M3 with a scale for each tensor, inputs too. All others are refused by name: NVFP4's inputs are rounded to
//                    4 bits, the rest has tensors of its own (pre_quant_scale, svdquant_lora_a, ...)
//   config_groups    {name: {targets, weights, input_activations}}
//   ignore           names of modules, with * for any characters
//   kv_cache_scheme  as compressed-tensors has it
//
// Older folders say it in hf_quant_config.json alone, whose "quantization" has exclude_modules and kv_cache_quant_algo instead and no
// groups: step 2 reads that file where config.json has nothing.
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

Json fp8_groups() {
  const Json numbers = {{"num_bits", 8}, {"type", "float"}};
  return {{"group_0", {{"targets", {"Linear"}}, {"weights", numbers}, {"input_activations", numbers}}}};
}

}  // namespace

ReadGroups read_modelopt(const ConfigObject& config, const std::string& what) {
  refuse_unknown_keys(config, {"quant_method", "quant_algo", "config_groups", "ignore", "kv_cache_scheme",
                               "producer", "exclude_modules", "kv_cache_quant_algo"});
  const std::string algorithm = config.string("quant_algo").value_or("");
  LADDER_CHECK(algorithm == "FP8", "{}: expected FP8, found {}", config.name("quant_algo"),
               json_brief(Json(algorithm)));
  Json same = {{"quant_method", "compressed-tensors"}, {"format", "float-quantized"}};
  for (const char* key : {"config_groups", "kv_cache_scheme"})
    if (const Json* value = config.find(key); value != nullptr) same[key] = *value;
  if (!config.has("config_groups")) same["config_groups"] = fp8_groups();
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
  for (const QuantizationGroup& group : read.groups) {
    const QuantizationScheme& scheme = group.linear.scheme;
    LADDER_CHECK(scheme.weights.is_float && scheme.weights.strategy == ScaleStrategy::tensor &&
                     scheme.input_activations && !scheme.input_activations->dynamic,
                 "{}: expected what FP8 is: weights and inputs in floats of 8 bits with a scale each",
                 config.name("config_groups"));
  }
  return read;
}

}  // namespace ladder

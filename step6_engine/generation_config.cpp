#include "step6_engine/generation_config.h"

#include <limits>

#include "step1_layers/core/error.h"
#include "step2_model/json.h"

namespace ladder {

SamplingParams default_sampling_params(const std::filesystem::path& model,
                                       const std::string& generation_config) {
  SamplingParams params;
  if (generation_config == "vllm") return params;
  const bool automatic = generation_config == "auto";
  const std::filesystem::path file =
      (automatic ? model : std::filesystem::path(generation_config)) / "generation_config.json";
  if (!std::filesystem::exists(file)) {
    LADDER_CHECK(automatic,
                 "--generation-config {}: expected auto, vllm or a folder with a generation_config.json",
                 generation_config);
    return params;
  }

  const std::string what = file.string();
  const Json config = load_json(file);
  const auto number = [&](const char* key, double& field) {
    if (const Json* value = json_find(config, key, what)) field = json_number(*value, what + ": " + key);
  };
  number("temperature", params.temperature);
  number("top_p", params.top_p);
  number("min_p", params.min_p);
  number("repetition_penalty", params.repetition_penalty);
  if (const Json* value = json_find(config, "top_k", what)) params.top_k = json_int(*value, what + ": top_k");
  if (const Json* value = json_find(config, "max_new_tokens", what))
    params.max_tokens = json_int(*value, what + ": max_new_tokens");
  try {
    validate_sampling_params(params, std::numeric_limits<int32_t>::max());
  } catch (const Error& error) {
    fail("{}: {}", what, error.what());
  }
  return params;
}

}  // namespace ladder

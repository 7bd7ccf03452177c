// A quantization_config, and after a zero byte the names of a linear's parts, one a line: what is stored how, or an Error.
// What compressed-tensors could have written is written and read again.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/config/quantization_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view json(reinterpret_cast<const char*>(data), size), lines;
  if (const size_t zero = json.find('\0'); zero != std::string_view::npos) {
    lines = json.substr(zero + 1);
    json = json.substr(0, zero);
  }
  std::vector<std::string> names = {"model.layers.0.mlp.down_proj"};
  for (size_t end; (end = lines.find('\n')) != std::string_view::npos && names.size() < 4;
       lines = lines.substr(end + 1))
    names.emplace_back(lines.substr(0, std::min<size_t>(end, 200)));
  try {
    const auto config = ladder::QuantizationConfig::parse(json, "config.json: quantization_config");
    bool foreign = false;
    for (const ladder::QuantizationGroup& group : config.groups())
      foreign = foreign || group.linear.format == ladder::StoredFormat::gptq ||
                group.linear.format == ladder::StoredFormat::awq || group.linear.scale_is_inverse ||
                group.linear.stored_scales == ladder::ScaleFormat::f16 ||
                group.linear.stored_scales == ladder::ScaleFormat::f32;
    if (!foreign) {
      const std::string text = ladder::to_json(config.groups(), config.ignored(), config.kv_cache());
      const auto again = ladder::QuantizationConfig::parse(text, "again");
      if (!(again.groups() == config.groups()) || again.ignored() != config.ignored() ||
          again.kv_cache() != config.kv_cache())
        std::abort();
    }
    config.linear(names);
  } catch (const ladder::Error&) {
  }
  return 0;
}

#include "step8_advanced/quantization/config/weights_note.h"

#include <algorithm>

#include "step8_advanced/quantization/config/quantization_config.h"

namespace ladder {

std::string weights_note(std::string_view quantization_config, const Device& device) {
  if (quantization_config.empty() || device.type != DeviceType::cuda) return {};
  const auto config = QuantizationConfig::parse(quantization_config, "config.json: quantization_config");
  const bool has_small_floats = std::ranges::any_of(config.groups(), [](const QuantizationGroup& group) {
    const QuantizationArgs& weights = group.linear.scheme.weights;
    return weights.is_float && weights.num_bits == 4;
  });
  if (!has_small_floats) return {};
  return "config.json: quantization_config: weights in floats of 4 bits (NVFP4, MXFP4) have no product of their own on a "
         "GPU here: they save memory, and are written out in the model's dtype for each product";
}

}  // namespace ladder

#pragma once
// Whether a checkpoint's activations are rounded by a scale of their own. A sum of f32 in another order is another number in its last
// bits, and may then be rounded to the neighbouring code: what follows is off by what rounding costs, in f32 too.
#include <algorithm>
#include <filesystem>

#include "step2_model/decoder/decoder_spec.h"
#include "step8_advanced/quantization/config/quantization_config.h"

namespace ladder::testing {

inline bool rounds_at_run_time(const std::filesystem::path& folder) {
  const QuantizationConfig config =
      QuantizationConfig::parse(load_decoder_spec(folder).quantization_config, folder.string());
  return std::ranges::any_of(config.groups(), [](const QuantizationGroup& group) {
    return group.linear.scheme.input_activations && group.linear.scheme.input_activations->dynamic;
  });
}

}  // namespace ladder::testing

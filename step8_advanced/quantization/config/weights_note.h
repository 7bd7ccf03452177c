#pragma once
// What is said to a user whose checkpoint has weights that the device only keeps.
#include <string>
#include <string_view>

#include "step1_layers/core/device.h"

namespace ladder {

// One line, or nothing: there is no quantization_config (empty text), or the device multiplies all of its formats. Error: see
// QuantizationConfig::parse.
std::string weights_note(std::string_view quantization_config, const Device& device);

}  // namespace ladder

#pragma once
// A scheme in words, for messages and for files.
#include <optional>
#include <string>

#include "step2_model/json.h"
#include "step8_advanced/quantization/stored_linear.h"

namespace ladder {

// The arguments as compressed-tensors writes them.
OrderedJson arguments_json(const QuantizationArgs& args);
// compressed-tensors' name of the format: "pack-quantized". Error: it has none.
std::string format_name(const StoredLinear& linear);
// "dense", or format and arguments.
std::string describe(const std::optional<StoredLinear>& linear);

}  // namespace ladder

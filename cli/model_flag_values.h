#pragma once
// Values of the flags that say how a model is run, with an engine or without.
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "step1_layers/core/dtype.h"

namespace ladder {

// --dtype: "f32", "f16" or "bf16".
DType parse_dtype(std::string_view name);

// The values of --kernel, OP=NAME, each operator once. Error naming the flag.
std::map<std::string, std::string, std::less<>> forced_kernels(const std::vector<std::string>& flags);

}  // namespace ladder

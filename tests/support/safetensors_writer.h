#pragma once
// Writes safetensors files, so that tests can make checkpoints.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "step1_layers/core/tensor.h"

namespace ladder::testing {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// The file's bytes; the tensors lie in the given order.
std::string encode_safetensors(const NamedTensors& tensors);
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors);

}  // namespace ladder::testing

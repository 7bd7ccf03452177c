#pragma once
// Task 8.5: writes checkpoints. A file appears under its name whole or not at all: it is written beside it, under a name that
// ends in ".writing", forced to the disc, and renamed; whatever goes wrong before (a full disc, a limit) is an Error
// that names the file, and the unfinished one is removed.
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "step1_layers/core/tensor.h"

namespace ladder {

// On the CPU, contiguous; may be a view of a mapped file, which is then copied piece by piece.
struct NamedTensor {
  std::string name;
  Tensor tensor;
};

void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

// One safetensors file, its tensors in this order, "__metadata__" as given. Error: two tensors of one name.
void write_safetensors_file(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                            const std::map<std::string, std::string>& metadata);

inline constexpr int64_t kMaxShardBytes = 5'000'000'000;  // as transformers cuts

// model.safetensors, or where that would have more than max_shard_bytes shards model-00001-of-00003.safetensors and their index,
// with the metadata {"format": "pt"}, which transformers asks for. A tensor larger than a shard gets one of its own.
void write_checkpoint(const std::filesystem::path& directory, const std::vector<NamedTensor>& tensors,
                      int64_t max_shard_bytes = kMaxShardBytes);

}  // namespace ladder

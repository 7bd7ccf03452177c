#pragma once
// Copies what one rank owns of a full checkpoint tensor into its parameter.
#include <array>
#include <cstdint>
#include <string>

#include "step1_layers/core/tensor.h"

namespace ladder {

// A window of the full tensor: `full` is the shape the checkpoint must have, and of each dimension the rank
// owns [begin, begin + size).
struct ShardWindow {
  Shape full;
  std::array<int64_t, Shape::kMaxDims> begin{};
  std::array<int64_t, Shape::kMaxDims> size{};
};

// destination (the window's shape, any strides) = the window of checkpoint, converted through float where
// the dtypes differ; no temporary copy is made. CPU. The checkpoint's elements need not be aligned. Error
// naming `what`: the checkpoint has another shape (says both), or a dtype that cannot be converted.
void load_shard(const std::string& what, const Tensor& checkpoint, const ShardWindow& window,
                const Tensor& destination);

}  // namespace ladder

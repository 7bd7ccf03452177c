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

// destination (the window's shape) = the window of checkpoint, which is in the CPU's memory, converted through
// float where the dtypes differ: between f32, bf16 and f16, of one or two dimensions with adjacent elements; with
// equal dtypes any are copied. On the CPU the destination may have any strides and no temporary copy is made;
// a destination on a device gets in one copy what was cut out and converted here. The checkpoint's elements need
// not be aligned. Error naming `what`: the checkpoint has another shape (says both), or a dtype that cannot be
// converted.
void load_shard(const std::string& what, const Tensor& checkpoint, const ShardWindow& window,
                const Tensor& destination);

}  // namespace ladder

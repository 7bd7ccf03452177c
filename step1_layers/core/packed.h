#pragma once
// The precondition of kernels that move sixteen bytes per instruction.
#include <cstdint>

#include "step1_layers/core/tensor.h"

namespace ladder {

// Whether every row (last dimension) starts at a multiple of sixteen bytes and is as many packs of sixteen
// bytes long.
inline bool is_packed(const Tensor& tensor) {
  const int64_t size = dtype_size(tensor.dtype());
  if (reinterpret_cast<uintptr_t>(tensor.raw()) % 16 != 0 || tensor.dim(-1) * size % 16 != 0) return false;
  for (int i = 0; i + 1 < tensor.ndim(); ++i)
    if (tensor.dim(i) > 1 && tensor.stride(i) * size % 16 != 0) return false;
  return true;
}

}  // namespace ladder

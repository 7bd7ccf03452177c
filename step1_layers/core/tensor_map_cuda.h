#pragma once
// Descriptions of tensors that Hopper's copy engine takes (sm_90; CUDA driver API, "Tensor Map Object Management"): one
// thread of a kernel names a box, and the engine brings it to shared memory, swizzled, and counts its bytes in on a
// barrier (wgmma.cuh, copy_box). No addresses are computed and no registers are held for it.
#include <cuda.h>

#include <array>
#include <cstdint>

#include "step1_layers/core/dtype.h"

namespace ladder {

inline constexpr int kMapRank = 5;

// A view of 16-bit elements: sizes[0] adjacent ones, and kMapRank - 1 outer dimensions with strides of their own (strides[i]
// is dimension i + 1's, in elements, in whole 16 bytes). Boxes are 64 elements of dimension 0 by box[1] by ...; they arrive
// with dimension 0 innermost, in rows of 128 bytes, swizzled as tensor_core.cuh's `swizzled` says, or, not swizzled, in rows of any
// whole 16 bytes, one after the other. What lies outside of the view arrives as zeros. Error: what the driver refuses.
struct TensorView {
  const void* data;  // at a multiple of 16 bytes
  DType dtype;       // bf16 or f16
  std::array<int64_t, kMapRank> sizes;
  std::array<int64_t, kMapRank - 1> strides;
  std::array<int, kMapRank> box;  // box[0] is 64, where swizzled, the others at most 256
  bool swizzled = true;
};
CUtensorMap tensor_map(const TensorView& view);

}  // namespace ladder

#pragma once
// Copies to shared memory of which the number in flight is known when the kernel is launched.
#include "step1_layers/core/tensor_core.cuh"

namespace ladder {

// Waits until at most `pending` groups of copies are in flight: `least` to `most` of them.
template <int least, int most>
__device__ void wait_some_copies(int pending) {
  constexpr int middle = (least + most) / 2;
  if constexpr (least == most)
    wait_copies<least>();
  else if (pending <= middle)
    wait_some_copies<least, middle>(pending);
  else
    wait_some_copies<middle + 1, most>(pending);
}

}  // namespace ladder

#pragma once
// Memory that the CPU and a GPU both reach by the same addresses (CUDA's managed memory): its pages go to whoever touches them.
#include "step1_layers/core/tensor.h"

namespace ladder {

// `tensor`, on a GPU and contiguous, gets such memory with the same elements; the result is the CPU's view of it. What the CPU writes
// there, while nothing on the GPU reads it, holds for kernels that are launched afterwards. Error: no memory.
Tensor move_to_shared_memory(Tensor& tensor);

}  // namespace ladder

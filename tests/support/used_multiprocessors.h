#pragma once
// On which multiprocessors of a GPU a stream's kernels run.
#include <set>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"

namespace ladder::testing {

// Those that blocks of a kernel on ctx.stream have run on, which stay for a while so that they spread over all they can have. In a
// build with CUDA only.
std::set<int> used_multiprocessors(const OpContext& ctx);

// The same in parts, for a graph: what the kernel writes into, the kernel, and what it has written.
Tensor multiprocessors_of_blocks(Device device);
void tell_multiprocessors(const OpContext& ctx, const Tensor& of_block);
std::set<int> read_multiprocessors(const Tensor& of_block);
const void* multiprocessor_kernel();

}  // namespace ladder::testing

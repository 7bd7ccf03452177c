#pragma once
// What a copy of a given size reaches on the GPU: the ceiling of a kernel that moves the same bytes.
#include "step1_layers/core/context.h"

namespace ladder::bench {

// to[i] = from[i] for `bytes` bytes (a multiple of 16; both 16-byte aligned), by a kernel of one read and one
// write per pack and nothing else.
void copy_by_kernel(const OpContext& ctx, const void* from, void* to, int64_t bytes);

}  // namespace ladder::bench

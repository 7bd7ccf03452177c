#pragma once
// Task 2.4: the addition of a residual that no norm follows (the end of a pipeline's range of layers).
#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"

namespace ladder {

// residual += x, of the same shape and dtype, both contiguous; rounded once, as fused_add_rms_norm does.
void add_residual(const OpContext& ctx, const Tensor& x, const Tensor& residual);

#ifdef LADDER_HAS_CUDA
void add_residual_cuda(const OpContext& ctx, const Tensor& x, const Tensor& residual);
#endif

}  // namespace ladder

#pragma once
// The fused rungs of composites.h on a GPU.
//
// Every block of a kernel that norms the stream reads all of it, so none of them may write it. None has to:
// the kernels of o_residual and down_residual add their product themselves, each element read and written by
// the one thread that owns it, and the norms after them find nothing pending. A norm with something pending
// (the product is summed over ranks, or had too many rows) comes first, as an operator.
#include "step2_model/decoder/composites.h"

namespace ladder {

bool takes_fused_norm_qkv(const NormLinearArgs& args);
void fused_norm_qkv(const OpContext& ctx, const NormLinearArgs& args);
bool takes_fused_norm_gate_up_silu(const NormGateUpArgs& args);
void fused_norm_gate_up_silu(const OpContext& ctx, const NormGateUpArgs& args);
bool takes_norm_then_gate_up_silu(const NormGateUpArgs& args);
void norm_then_gate_up_silu(const OpContext& ctx, const NormGateUpArgs& args);
bool takes_fused_residual(const LinearResidualArgs& args);
void fused_residual(const OpContext& ctx, const LinearResidualArgs& args);

}  // namespace ladder

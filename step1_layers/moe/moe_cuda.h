#pragma once
// The CUDA rungs of router.h, experts.h, local_experts.h, shared_expert.h and touched_experts.h. Their arguments have been checked.
#include "step1_layers/moe/experts.h"
#include "step1_layers/moe/local_experts.h"
#include "step1_layers/moe/router.h"
#include "step1_layers/moe/shared_expert.h"
#include "step1_layers/moe/touched_experts.h"

namespace ladder {

void route_tokens_cuda(const OpContext& ctx, const RouteTokensArgs& args);
bool route_tokens_cuda_takes(const RouteTokensArgs& args);

void moe_experts_cuda(const OpContext& ctx, const MoeExpertsArgs& args);

void moe_experts_cuda_per_expert(const OpContext& ctx, const MoeExpertsArgs& args);
bool moe_experts_takes_per_expert(
    const MoeExpertsArgs& args);  // as many pairs as experts: nearly all are touched

void moe_experts_cuda_grouped(const OpContext& ctx, const MoeExpertsArgs& args);
void moe_experts_cuda_overlapped(const OpContext& ctx, const MoeExpertsArgs& args);
bool moe_experts_takes_grouped(const MoeExpertsArgs& args);  // both

void moe_experts_cuda_stream(const OpContext& ctx, const MoeExpertsArgs& args);
bool moe_experts_takes_stream(const MoeExpertsArgs& args);

void find_local_experts_cuda(const OpContext& ctx, const FindLocalExpertsArgs& args);

void add_shared_expert_cuda(const OpContext& ctx, const AddSharedExpertArgs& args);

void count_touched_experts_cuda(const OpContext& ctx, const CountTouchedExpertsArgs& args);

}  // namespace ladder

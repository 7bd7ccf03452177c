#pragma once
// The CPU rungs of experts.h. Their arguments have been checked, but for the numbers of the experts.
#include "step1_layers/moe/experts.h"

namespace ladder {

void moe_experts_loop(const OpContext& ctx, const MoeExpertsArgs& args);
void moe_experts_per_expert(const OpContext& ctx, const MoeExpertsArgs& args);
// The same by anybody's products.
void run_experts_one_by_one(const OpContext& ctx, const MoeExpertsArgs& args, const ExpertProducts& products);

}  // namespace ladder

#pragma once
// How many experts of a layer the tokens of a step touch: what has to be read of its weights. An instrument of measurements; no
// engine calls it while it serves.
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

inline constexpr int64_t kMaxCountedExperts = 4096;  // of a layer

struct CountTouchedExpertsArgs {
  Tensor expert_ids;        // [tokens, top_k] i32, adjacent; others than the layer's experts count for none
  int64_t num_experts = 0;  // of the layer, 1 to kMaxCountedExperts
  Tensor counts;            // [sizes, 2] i64, adjacent
};

std::span<const Variant<CountTouchedExpertsArgs>> count_touched_experts_variants();

// counts[tokens] += {1, how many different experts the ids name}: a call, and what it touched, by the number of its tokens, so
// that calls from a captured graph tell their steps apart. More tokens than counts has sizes for, or none, are not counted.
// Calls with the same counts are of one stream. Error: shapes or dtypes that do not fit together.
void count_touched_experts(const OpContext& ctx, const CountTouchedExpertsArgs& args);

}  // namespace ladder

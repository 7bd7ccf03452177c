#pragma once
// Which of the chosen experts are on this rank, and under what number. A rank that holds some of a layer's experts routes as
// all ranks do, by the numbers of the whole layer, and then looks them up:
//
//   experts 4 to 7 of 8 are here:   local_numbers  -1 -1 -1 -1 0 1 2 3       ids  2 5 | 7 4   become   -1 1 | 3 0
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

struct FindLocalExpertsArgs {
  Tensor expert_ids;     // [tokens, top_k] i32, adjacent; changed in place
  Tensor local_numbers;  // [experts] i32, adjacent; -1: on another rank
};

std::span<const Variant<FindLocalExpertsArgs>> find_local_experts_variants();

// expert_ids[i] = local_numbers[expert_ids[i]]; an id of -1 stays. Error: shapes or dtypes that do not fit together; on the
// CPU an id that is no expert's, which on a GPU becomes -1.
void find_local_experts(const OpContext& ctx, const Tensor& expert_ids, const Tensor& local_numbers);

}  // namespace ladder

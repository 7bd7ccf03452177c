#pragma once
// The last step of experts on a GPU whose products leave a row for each pair of a token and an expert.
#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"

namespace ladder {

// out[t] = the sum over the experts of token t, of those that are here, of results [pairs, hidden], which hold their weight already.
// results: f32 or out's dtype. Rows are packed (packed.h).
void combine_results(const OpContext& ctx, const Tensor& expert_ids, int64_t experts, const Tensor& results,
                     const Tensor& out);

}  // namespace ladder

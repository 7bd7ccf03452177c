#pragma once
// What the rungs of quantized_experts on a GPU multiply: x, or activated values, as the scheme of the product rounds them.
#include "step1_layers/core/arena.h"
#include "step8_advanced/quantization/kernels/quantized_experts.h"

namespace ladder {

// Pair p of a token and an expert takes row p / pairs_of_row.
struct RowsOfPairs {
  Tensor rows;
  int pairs_of_row = 1;
};

// Whether a GPU rounds what both products multiply.
bool expert_rows_are_rounded_on_a_gpu(const QuantizedExpertsArgs& args);

// `from` itself where there is nothing to do, else made in the arena: rounded, and in the order of the weight's columns. Stored scales are
// an expert's own, and orders may be, so a row is made for each pair then; of one that has no expert here it is left as it is in memory.
RowsOfPairs prepared_rows(const OpContext& ctx, const ExpertMatrices& matrices, const Tensor& expert_ids,
                          const RowsOfPairs& from, Arena& arena);

}  // namespace ladder

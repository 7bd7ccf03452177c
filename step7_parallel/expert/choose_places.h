#pragma once
// 7.9: which copy of an expert a row goes to, and who is no token at all: one pass over what the router has chosen.
//
//   slots 5 7 -1    ids  2 0 | 2 1 | 2 0    copies of 2: places 1 3; of 0: place 0; of 1: place 2
//   become               1 0 | 3 2 | -1 -1       counted: expert 0 once, 1 once, 2 twice
//
// Row r takes copy (first_copy + r) mod c of c: ranks that have the same rows so agree, and nothing has to be kept. On a GPU it is a kernel
// whose tables stay where they are and change between steps, so that a captured graph stays right.
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

struct ChoosePlacesArgs {
  Tensor expert_ids;  // [rows, top_k] i32, adjacent, by the layer's numbers; changed in place
  // [rows] i64: each row's slot in the KV cache. Rows without one, -1, are no tokens: their ids become -1. Undefined: no row is
  // counted, and each has its experts.
  Tensor slots = {};
  // [experts, 1 + the most copies] i32: how many copies an expert has, and their places. Undefined: the ids stay.
  Tensor places = {};
  int64_t first_copy = 0;
  // [experts] i64: so many tokens more have chosen each. Undefined: nothing is counted.
  Tensor counts = {};
  int64_t first_counted = 0, counted_step = 1;  // rows first, first + step, ... are counted here
};

std::span<const Variant<ChoosePlacesArgs>> choose_places_variants();

// Error: shapes or dtypes that do not fit together; on the CPU an id that is no expert's, which on a GPU becomes -1.
void choose_places(const OpContext& ctx, const ChoosePlacesArgs& args);

// The rung of the GPU.
void choose_places_cuda(const OpContext& ctx, const ChoosePlacesArgs& args);

}  // namespace ladder

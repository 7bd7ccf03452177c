#pragma once
// Task 1.9.permute: the pairs of a token and one of its experts, sorted by expert.
//
//   expert_ids   token 0: 2 0     pairs 0 1          by expert   expert 0 | expert 1 | expert 2
//                token 1: 0 2           2 3                pairs   1  2   |          | 0  3  5
//                token 2: -1 2          4 5              offsets   0      2          2          5
//
// After that an expert's tokens are neighbours, and one product serves them all. Pair p is expert p % top_k of token
// p / top_k; pairs without an expert here are left out.
#include <cstdint>
#include <span>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/tensor.h"

namespace ladder {

struct SortedPairs {
  std::span<const int32_t>
      offsets;  // [experts + 1]: those of expert e are pairs[offsets[e]] to pairs[offsets[e + 1] - 1]
  std::span<const int32_t> pairs;  // in ascending order within an expert
};

// expert_ids: [tokens, top_k] i32 on the CPU, adjacent. The result lives in the arena. Error: an id that is neither -1 nor
// the number of an expert.
SortedPairs sort_pairs(const Tensor& expert_ids, int64_t experts, Arena& arena);

}  // namespace ladder

#include "step1_layers/moe/permutation.h"

#include <algorithm>

#include "step1_layers/core/error.h"

namespace ladder {

// >>> task 1.9: sorting by counting: how many, where they begin, then each to its place
SortedPairs sort_pairs(const Tensor& expert_ids, int64_t experts, Arena& arena) {
  const int64_t num_pairs = expert_ids.numel();
  const std::span ids(expert_ids.data<int32_t>(), static_cast<size_t>(num_pairs));
  const Tensor offsets_tensor = arena.take({experts + 1}, DType::i32);
  const std::span offsets(offsets_tensor.data<int32_t>(), static_cast<size_t>(experts + 1));
  std::fill(offsets.begin(), offsets.end(), 0);
  for (const int32_t expert : ids) {
    LADDER_CHECK(expert >= -1 && expert < experts, "moe_experts: there is no expert {}, they are {}", expert,
                 experts);
    if (expert >= 0) ++offsets[expert + 1];
  }
  for (int64_t e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];

  const Tensor pairs_tensor = arena.take({num_pairs}, DType::i32);
  const std::span pairs(pairs_tensor.data<int32_t>(), static_cast<size_t>(num_pairs));
  // offsets[e] serves as the place of the next pair of e, and ends up as the beginning of e + 1.
  for (int64_t pair = 0; pair < num_pairs; ++pair)
    if (ids[pair] >= 0) pairs[offsets[ids[pair]]++] = static_cast<int32_t>(pair);
  for (int64_t e = experts; e > 0; --e) offsets[e] = offsets[e - 1];
  offsets[0] = 0;
  return {offsets, pairs.first(static_cast<size_t>(offsets[experts]))};
}
// <<< task 1.9

}  // namespace ladder

#pragma once
// Redundant experts: copies beside a layer's own, so that those that are asked for most are on several ranks (7.9.balance).
#include <cstdint>

namespace ladder {

// Error unless num_experts and num_redundant together are a multiple of the ranks, and at most a copy of each on every rank;
// it names the numbers of redundant experts that would do.
void check_redundant_experts(int64_t num_experts, int64_t ranks, int64_t num_redundant);

}  // namespace ladder

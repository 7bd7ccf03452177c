#pragma once
// The rows of several ranks of a context-parallel group, which came one rank after another, in the order of their tokens.
#include <span>
#include <vector>

#include "step7_parallel/context/context_attention.h"

namespace ladder {

// Of ranks [first, first + begins.size()) of `ranks`, whose rows of a tensor begin at begins[0], begins[1], ... of what came:
// where each row of the ordered one is. That is prompt after prompt and, of each, the ranks' early chunks in order and their
// late ones in order, so the rows of a bigger rank: of zigzag_share(length, ranks / begins.size(), first / begins.size()).
// with_cached: the rows are keys, of each prompt first those cached on the first of these ranks, then on the next.
// `first` and `ranks` are multiples of begins.size().
std::vector<int64_t> row_order(const std::vector<ContextPrompt>& prompts, int ranks, int first,
                               std::span<const int64_t> begins, bool with_cached);

// Row i of the result is row order[i] of `rows`, which is f32 [.., .., ..], on the CPU and contiguous.
Tensor rows_in_order(const Tensor& rows, const std::vector<int64_t>& order);
// The other way round: row i goes to row order[i] of `out`.
void put_rows_back(const Tensor& rows, const std::vector<int64_t>& order, const Tensor& out);

}  // namespace ladder

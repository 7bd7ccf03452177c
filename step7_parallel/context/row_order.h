#pragma once
// The rows of several ranks of a context-parallel group, which came one rank after another, in the order of their tokens.
#include <span>
#include <vector>

#include "step7_parallel/context/context_attention.h"

namespace ladder {

// Rows that stand side by side in both orders.
struct RowRun {
  int64_t came = 0, ordered = 0;  // where the first of them stands
  int64_t count = 0;
};

// Of ranks [first, first + begins.size()) of `ranks`, whose rows of a tensor begin at begins[0], begins[1], ... of what came:
// the ordered tensor, run by run. That is prompt after prompt and, of each, the ranks' early chunks in order and their
// late ones in order, so the rows of a bigger rank: of zigzag_share(length, ranks / begins.size(), first / begins.size()).
// with_cached: the rows are keys, of each prompt first those cached on the first of these ranks, then on the next.
// `first` and `ranks` are multiples of begins.size().
std::vector<RowRun> row_order(const std::vector<ContextPrompt>& prompts, int ranks, int first,
                              std::span<const int64_t> begins, bool with_cached);

// Contiguous tensors of one dtype on ctx.device, each [.., heads, dim]: a copy for each run.
void put_in_order(const OpContext& ctx, const std::vector<RowRun>& order, const Tensor& came,
                  const Tensor& ordered);
void put_back(const OpContext& ctx, const std::vector<RowRun>& order, const Tensor& ordered,
              const Tensor& came);

}  // namespace ladder

#include "step7_parallel/context/row_order.h"

namespace ladder {

std::vector<RowRun> row_order(const std::vector<ContextPrompt>& prompts, int ranks, int first,
                              std::span<const int64_t> begins, bool with_cached) {
  std::vector<RowRun> order;
  std::vector<int64_t> next(begins.begin(), begins.end());
  int64_t ordered = 0;
  const int count = static_cast<int>(begins.size());
  auto take = [&](int rank, int64_t rows) {
    int64_t& came = next[static_cast<size_t>(rank - first)];
    if (rows > 0) order.push_back({came, ordered, rows});
    came += rows;
    ordered += rows;
  };
  for (const ContextPrompt& prompt : prompts) {
    if (with_cached)
      for (int rank = first; rank < first + count; ++rank) take(rank, prompt.cached_of(rank));
    for (int rank = first; rank < first + count; ++rank)
      take(rank, zigzag_share(prompt.length, ranks, rank).early.size());
    for (int rank = first + count; rank-- > first;)
      take(rank, zigzag_share(prompt.length, ranks, rank).late.size());
  }
  return order;
}

void put_in_order(const OpContext& ctx, const std::vector<RowRun>& order, const Tensor& came,
                  const Tensor& ordered) {
  for (const RowRun& run : order)
    ordered.narrow(0, run.ordered, run.count).copy_from(came.narrow(0, run.came, run.count), ctx.stream);
}

void put_back(const OpContext& ctx, const std::vector<RowRun>& order, const Tensor& ordered,
              const Tensor& came) {
  for (const RowRun& run : order)
    came.narrow(0, run.came, run.count).copy_from(ordered.narrow(0, run.ordered, run.count), ctx.stream);
}

}  // namespace ladder

#include "step7_parallel/context/row_order.h"

#include <cstring>

namespace ladder {

std::vector<int64_t> row_order(const std::vector<ContextPrompt>& prompts, int ranks, int first,
                               std::span<const int64_t> begins, bool with_cached) {
  std::vector<int64_t> order, next(begins.begin(), begins.end());
  const int count = static_cast<int>(begins.size());
  auto take = [&](int rank, int64_t rows) {
    for (int64_t& row = next[static_cast<size_t>(rank - first)]; rows > 0; --rows) order.push_back(row++);
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

namespace {

size_t bytes_of_row(const Tensor& rows) {
  return static_cast<size_t>(rows.dim(1) * rows.dim(2)) * sizeof(float);
}

}  // namespace

Tensor rows_in_order(const Tensor& rows, const std::vector<int64_t>& order) {
  const Tensor out = Tensor::empty({std::ssize(order), rows.dim(1), rows.dim(2)}, DType::f32);
  const size_t bytes = bytes_of_row(rows);
  for (size_t i = 0; i < order.size(); ++i)
    std::memcpy(static_cast<char*>(out.raw()) + i * bytes,
                static_cast<const char*>(rows.raw()) + static_cast<size_t>(order[i]) * bytes, bytes);
  return out;
}

void put_rows_back(const Tensor& rows, const std::vector<int64_t>& order, const Tensor& out) {
  const size_t bytes = bytes_of_row(rows);
  for (size_t i = 0; i < order.size(); ++i)
    std::memcpy(static_cast<char*>(out.raw()) + static_cast<size_t>(order[i]) * bytes,
                static_cast<const char*>(rows.raw()) + i * bytes, bytes);
}

}  // namespace ladder

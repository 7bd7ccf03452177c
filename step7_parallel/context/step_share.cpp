#include "step7_parallel/context/step_share.h"

#include <algorithm>
#include <iterator>

#include "step7_parallel/context/prefill_rows.h"

namespace ladder {
namespace {

// visit(list of the first, the same list of the second), in the order in which they lie in memory.
template <class First, class Second, class Visit>
void for_each_list(First& first, Second& second, Visit visit) {
  visit(first.rows, second.rows);
  visit(first.all_rows, second.all_rows);
  visit(first.places, second.places);
  visit(first.sequences, second.sequences);
  visit(first.ends, second.ends);
  visit(first.query_start_loc, second.query_start_loc);
}

}  // namespace

StepShare share_of_step(std::span<const int32_t> query_start_loc, int ranks, int rank) {
  auto shares = share_out_rows(query_start_loc, ranks);
  StepShare step;
  std::vector<std::vector<int32_t>> rows;  // by rank
  for (const std::vector<RowSpan>& spans : shares) {
    std::vector<int32_t>& of_rank = rows.emplace_back();
    for (const auto& [sequence, tokens] : spans)
      for (int64_t token = tokens.begin; token < tokens.end; ++token)
        of_rank.push_back(query_start_loc[static_cast<size_t>(sequence)] + static_cast<int32_t>(token));
    step.most = std::max(step.most, std::ssize(of_rank));
  }
  auto& lists = step.lists;
  lists.places.resize(static_cast<size_t>(query_start_loc.back()));
  for (const std::vector<int32_t>& of_rank : rows) {
    const size_t first = lists.all_rows.size();
    for (size_t i = 0; i < of_rank.size(); ++i)
      lists.places[static_cast<size_t>(of_rank[i])] = static_cast<int32_t>(first + i);
    lists.all_rows.insert(lists.all_rows.end(), of_rank.begin(), of_rank.end());
    lists.all_rows.resize(first + static_cast<size_t>(step.most), -1);
  }
  std::vector<RowSpan>& spans = shares[static_cast<size_t>(rank)];
  lists.rows = rows[static_cast<size_t>(rank)];
  if (spans.empty()) {
    spans = {{0, {0, 1}}};
    lists.rows = {0};
  }
  lists.query_start_loc = {0};
  for (const auto& [sequence, tokens] : spans) {
    lists.sequences.push_back(static_cast<int32_t>(sequence));
    lists.ends.push_back(static_cast<int32_t>(tokens.end));
    lists.query_start_loc.push_back(lists.query_start_loc.back() + static_cast<int32_t>(tokens.size()));
    step.max_query_len = std::max(step.max_query_len, tokens.size());
  }
  const auto longer_than_one = [&](size_t seq) {
    return query_start_loc[seq + 1] - query_start_loc[seq] > 1;
  };
  for (size_t seq = 0; seq + 1 < query_start_loc.size(); ++seq)
    if (longer_than_one(seq)) step.max_query_len = std::max<int64_t>(step.max_query_len, 2);
  return step;
}

int64_t StepShare::numel() const {
  int64_t count = 0;
  for_each_list(lists, lists, [&](const auto& list, const auto&) { count += std::ssize(list); });
  return count;
}

void StepShare::write(int32_t* to) const {
  for_each_list(lists, lists,
                [&](const auto& list, const auto&) { to = std::copy(list.begin(), list.end(), to); });
}

ShareLists<Tensor> StepShare::views(const Tensor& memory) const {
  ShareLists<Tensor> tensors;
  int64_t at = 0;
  for_each_list(lists, tensors, [&](const auto& list, Tensor& tensor) {
    tensor = memory.narrow(0, at, std::ssize(list));
    at += std::ssize(list);
  });
  return tensors;
}

}  // namespace ladder

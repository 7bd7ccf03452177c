#include "step7_parallel/expert/expert_moves.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "step4_runner/redundant_experts.h"

namespace ladder {

namespace {

using Experts = std::vector<int32_t>;

bool has(const Experts& experts, int32_t expert) {
  return std::ranges::find(experts, expert) != experts.end();
}

// Experts of `list` in the places of `here`.
Experts keep_places(Experts here, const Experts& list) {
  Experts coming;
  std::ranges::copy_if(list, std::back_inserter(coming), [&](int32_t expert) { return !has(here, expert); });
  auto next = coming.begin();
  for (int32_t& expert : here)
    if (!has(list, expert)) expert = *next++;
  return here;
}

}  // namespace

ExpertPlacement first_placement(int64_t num_experts, int64_t ranks, int64_t num_redundant) {
  check_redundant_experts(num_experts, ranks, num_redundant);
  ExpertPlacement placement;
  placement.rank_experts.resize(static_cast<size_t>(ranks));
  const int64_t places = num_experts + num_redundant;
  for (int64_t place = 0; place < places; ++place)
    placement.rank_experts[static_cast<size_t>(place / (places / ranks))].push_back(
        static_cast<int32_t>(place % num_experts));
  return placement;
}

ExpertPlacement settle(const ExpertPlacement& now, const ExpertPlacement& wanted) {
  struct Pair {
    size_t list, rank;
    std::ptrdiff_t common;
  };
  const size_t ranks = now.rank_experts.size();
  std::vector<Pair> pairs;
  for (size_t list = 0; list < ranks; ++list)
    for (size_t rank = 0; rank < ranks; ++rank) {
      const Experts& here = now.rank_experts[rank];
      const auto stays = [&](int32_t expert) { return has(here, expert); };
      pairs.push_back({list, rank, std::ranges::count_if(wanted.rank_experts[list], stays)});
    }
  std::ranges::stable_sort(pairs, std::greater(), &Pair::common);
  ExpertPlacement next;
  next.rank_experts.resize(ranks);
  std::vector<bool> given(ranks);
  for (const Pair& pair : pairs) {
    if (given[pair.list] || !next.rank_experts[pair.rank].empty()) continue;
    given[pair.list] = true;
    next.rank_experts[pair.rank] = keep_places(now.rank_experts[pair.rank], wanted.rank_experts[pair.list]);
  }
  return next;
}

std::vector<ExpertMove> plan_moves(const ExpertPlacement& now, const ExpertPlacement& next) {
  std::vector<ExpertMove> moves;
  for (size_t to = 0; to < next.rank_experts.size(); ++to)
    for (size_t place = 0; place < next.rank_experts[to].size(); ++place) {
      const int32_t expert = next.rank_experts[to][place];
      if (now.rank_experts[to][place] == expert) continue;
      std::vector<size_t> sources;
      for (size_t rank = 0; rank < now.rank_experts.size(); ++rank)
        if (has(now.rank_experts[rank], expert)) sources.push_back(rank);
      const size_t from = sources[to % sources.size()];
      moves.push_back({expert, static_cast<int64_t>(from),
                       std::ranges::find(now.rank_experts[from], expert) - now.rank_experts[from].begin(),
                       static_cast<int64_t>(to), static_cast<int64_t>(place)});
    }
  return moves;
}

}  // namespace ladder

#include "step7_parallel/expert/expert_balancer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "step1_layers/core/error.h"
#include "step4_runner/redundant_experts.h"

namespace ladder {

// >>> task 7.9.balance: copies for the experts that are asked for most, and as many tokens for every rank
namespace {

using RankExperts = std::vector<std::vector<int32_t>>;

std::vector<int64_t> count_copies(std::span<const int64_t> loads, int64_t ranks, int64_t num_redundant) {
  std::vector<int64_t> copies(loads.size(), 1);
  for (; num_redundant > 0; --num_redundant) {
    size_t most = loads.size();
    for (size_t expert = 0; expert < loads.size(); ++expert) {
      if (copies[expert] == ranks) continue;
      if (most == loads.size() || loads[expert] * copies[most] > loads[most] * copies[expert]) most = expert;
    }
    ++copies[most];
  }
  return copies;
}

// Tokens of a copy of each.
std::vector<double> tokens_per_copy(std::span<const int64_t> loads, const std::vector<int64_t>& copies) {
  std::vector<double> tokens;
  for (size_t expert = 0; expert < loads.size(); ++expert)
    tokens.push_back(static_cast<double>(loads[expert]) / static_cast<double>(copies[expert]));
  return tokens;
}

RankExperts pack(std::span<const int64_t> loads, const std::vector<int64_t>& copies, int64_t ranks) {
  const size_t room = static_cast<size_t>(std::reduce(copies.begin(), copies.end()) / ranks);
  const std::vector<double> tokens = tokens_per_copy(loads, copies);
  std::vector<int32_t> order(loads.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const auto i = static_cast<size_t>(a), j = static_cast<size_t>(b);
    return loads[i] * copies[j] > loads[j] * copies[i];
  });
  RankExperts placed(static_cast<size_t>(ranks));
  std::vector<double> work(placed.size(), 0.0);
  for (const int32_t expert : order)
    for (int64_t copy = 0; copy < copies[static_cast<size_t>(expert)]; ++copy) {
      size_t best = placed.size();
      bool best_has_it = false;
      for (size_t rank = 0; rank < placed.size(); ++rank) {
        if (placed[rank].size() == room) continue;
        const bool has_it = std::ranges::count(placed[rank], expert) > 0;
        if (best < placed.size() && (has_it == best_has_it ? work[rank] >= work[best] : has_it)) continue;
        best = rank;
        best_has_it = has_it;
      }
      placed[best].push_back(expert);
      work[best] += tokens[static_cast<size_t>(expert)];
    }
  return placed;
}

// The first copy that its rank has twice changes places. false: there is none.
bool separate_one(RankExperts& placed, const std::vector<double>& tokens) {
  for (std::vector<int32_t>& here : placed)
    for (int32_t& again : here) {
      if (std::ranges::count(here, again) < 2) continue;
      int32_t* nearest = nullptr;
      double difference = std::numeric_limits<double>::infinity();
      for (std::vector<int32_t>& there : placed) {
        if (std::ranges::count(there, again) > 0) continue;
        for (int32_t& other : there) {
          if (std::ranges::count(here, other) > 0 && std::ranges::count(there, other) < 2) continue;
          const double apart =
              std::abs(tokens[static_cast<size_t>(other)] - tokens[static_cast<size_t>(again)]);
          if (apart >= difference) continue;
          difference = apart;
          nearest = &other;
        }
      }
      std::swap(again, *nearest);
      return true;
    }
  return false;
}

}  // namespace

ExpertPlacement balance_experts(std::span<const int64_t> loads, int64_t ranks, int64_t num_redundant) {
  check_redundant_experts(std::ssize(loads), ranks, num_redundant);
  for (const int64_t load : loads) LADDER_CHECK(load >= 0, "an expert with {} tokens", load);
  const std::vector<int64_t> copies = count_copies(loads, ranks, num_redundant);
  ExpertPlacement placement{pack(loads, copies, ranks)};
  while (separate_one(placement.rank_experts, tokens_per_copy(loads, copies))) {
  }
  return placement;
}

double imbalance(std::span<const int64_t> loads, const ExpertPlacement& placement) {
  std::vector<int64_t> copies(loads.size(), 0);
  for (const auto& experts : placement.rank_experts)
    for (const int32_t expert : experts) ++copies[static_cast<size_t>(expert)];
  const std::vector<double> tokens = tokens_per_copy(loads, copies);
  double most = 0.0, all = 0.0;
  for (const auto& experts : placement.rank_experts) {
    double work = 0.0;
    for (const int32_t expert : experts) work += tokens[static_cast<size_t>(expert)];
    most = std::max(most, work);
    all += work;
  }
  return all > 0.0 ? most / (all / static_cast<double>(placement.rank_experts.size())) : 1.0;
}
// <<< task 7.9.balance

}  // namespace ladder

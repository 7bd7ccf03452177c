#pragma once
// Loads of a layer's experts, and what every placement of them must be.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "step1_layers/core/error.h"
#include "step7_parallel/expert/expert_balancer.h"
#include "tests/support/numerics.h"

namespace ladder::testing {

// Of each expert.
inline std::vector<int64_t> copies_of(const ExpertPlacement& placement, int64_t experts) {
  std::vector<int64_t> copies(static_cast<size_t>(experts), 0);
  for (const auto& here : placement.rank_experts)
    for (const int32_t expert : here) ++copies.at(static_cast<size_t>(expert));
  return copies;
}

struct BalancerProblem {
  std::vector<int64_t> loads;
  int64_t ranks = 1, num_redundant = 0;

  BalancerProblem(std::vector<int64_t> loads, int64_t ranks, int64_t num_redundant)
      : loads(std::move(loads)), ranks(ranks), num_redundant(num_redundant) {}
  // Loads of any kind: many equal ones, zeros, a few that outweigh all others.
  BalancerProblem(Random& random, int64_t max_experts, int64_t max_ranks)
      : ranks(random.integer(1, max_ranks)) {
    const int64_t experts = random.integer(ranks, max_experts), most = random.integer(1, 4);
    for (int64_t expert = 0; expert < experts; ++expert) {
      loads.push_back(random.integer(0, most));
      for (int64_t more = random.integer(0, 3); more > 0; --more) loads.back() *= random.integer(1, 9);
    }
    const int64_t first = (ranks - experts % ranks) % ranks, last = experts * (ranks - 1);
    num_redundant = first + random.integer(0, (last - first) / ranks) * ranks;
  }

  ExpertPlacement balanced() const { return balance_experts(loads, ranks, num_redundant); }

  ::testing::AssertionResult is_placed_well(const ExpertPlacement& placement) const {
    const auto fails = [&] {
      return ::testing::AssertionFailure() << ::testing::PrintToString(placement.rank_experts) << ": ";
    };
    const int64_t experts = std::ssize(loads);
    if (std::ssize(placement.rank_experts) != ranks) return fails() << "ranks";
    for (const auto& here : placement.rank_experts) {
      if (std::ssize(here) * ranks != experts + num_redundant) return fails() << "unequal numbers";
      for (const int32_t expert : here)
        if (std::count(here.begin(), here.end(), expert) != 1) return fails() << expert << " twice on a rank";
    }
    const std::vector<int64_t> copies = copies_of(placement, experts);
    for (size_t expert = 0; expert < copies.size(); ++expert)
      if (copies[expert] == 0) return fails() << expert << " is nowhere";
    return ::testing::AssertionSuccess();
  }

  double most_per_copy(const std::vector<int64_t>& copies) const {
    double most = 0.0;
    for (size_t expert = 0; expert < loads.size(); ++expert)
      most = std::max(most, static_cast<double>(loads[expert]) / static_cast<double>(copies[expert]));
    return most;
  }
  // The least that any numbers of copies reach: the smallest of all quotients for which there are enough copies.
  double least_most_per_copy() const {
    double least = std::numeric_limits<double>::infinity();
    for (const int64_t load : loads)
      for (int64_t parts = 1; parts <= ranks; ++parts) {
        const double bound = static_cast<double>(load) / static_cast<double>(parts);
        int64_t needed = 0;
        bool possible = true;
        for (const int64_t other : loads) {
          int64_t copies = 1;
          while (copies <= ranks && static_cast<double>(other) / static_cast<double>(copies) > bound)
            ++copies;
          possible &= copies <= ranks;
          needed += copies;
        }
        if (possible && needed <= std::ssize(loads) + num_redundant) least = std::min(least, bound);
      }
    return least;
  }
  std::string str() const {
    return fmt::format("loads {}, {} ranks, {} redundant experts", fmt::join(loads, " "), ranks,
                       num_redundant);
  }
};

}  // namespace ladder::testing

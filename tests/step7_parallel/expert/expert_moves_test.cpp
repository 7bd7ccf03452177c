// 7.9: what moves between two placements of experts.
#include "step7_parallel/expert/expert_moves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "step1_layers/core/error.h"
#include "step4_runner/rank_grid.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Lists = std::vector<std::vector<int32_t>>;

TEST(Task7_9_Moves, PlacesAtFirstCountThroughTheExpertsAndOnWithTheirCopies) {
  EXPECT_EQ(first_placement(4, 2, 2).rank_experts, (Lists{{0, 1, 2}, {3, 0, 1}}));
  EXPECT_EQ(first_placement(3, 2, 3).rank_experts, (Lists{{0, 1, 2}, {0, 1, 2}}));
  const ExpertPlacement plain = first_placement(6, 3, 0);
  for (int64_t rank = 0; rank < 3; ++rank) {
    const ExpertRange here = experts_of_rank(6, 3, rank);
    EXPECT_EQ(plain.rank_experts[static_cast<size_t>(rank)].front(), here.begin);
    EXPECT_EQ(plain.rank_experts[static_cast<size_t>(rank)].back(), here.end - 1);
  }
  EXPECT_THROW(first_placement(4, 2, 1), Error);
}

TEST(Task7_9_Moves, WhatIsThereStaysWhereItIs) {
  const ExpertPlacement now = first_placement(4, 2, 2);
  const ExpertPlacement same = settle(now, {{{3, 1, 0}, {2, 0, 1}}});
  EXPECT_EQ(same, now);
  EXPECT_THAT(plan_moves(now, same), IsEmpty());
  const ExpertPlacement next = settle(now, {{{3, 1, 2}, {0, 1, 2}}});
  EXPECT_EQ(next.rank_experts, (Lists{{0, 1, 2}, {3, 2, 1}}));
  EXPECT_THAT(plan_moves(now, next), ElementsAre(ExpertMove{2, 0, 2, 1, 1}));
}

// By what the moves say, from place to place, one comes from any placement to the next; each rank's list is one that was wanted.
TEST(Task7_9_Moves, LeadFromAnyPlacementToTheNext) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 300; ++round) {
    const int64_t ranks = random.integer(1, 5), experts = random.integer(ranks, 12);
    int64_t redundant = (ranks - experts % ranks) % ranks;
    redundant += ranks * random.integer(0, (experts * (ranks - 1) - redundant) / ranks);
    const auto any = [&] {
      std::vector<int64_t> loads;
      for (int64_t i = 0; i < experts; ++i) loads.push_back(random.integer(0, 100));
      return balance_experts(loads, ranks, redundant);
    };
    const ExpertPlacement now = any(), wanted = any(), next = settle(now, wanted);
    std::multiset<std::set<int32_t>> lists, wanted_lists;
    for (const auto& list : next.rank_experts) lists.emplace(list.begin(), list.end());
    for (const auto& list : wanted.rank_experts) wanted_lists.emplace(list.begin(), list.end());
    ASSERT_EQ(lists, wanted_lists);
    ExpertPlacement moved = now;
    for (const ExpertMove& move : plan_moves(now, next)) {
      const auto at = [](auto& placement, int64_t rank, int64_t place) -> auto& {
        return placement.rank_experts[static_cast<size_t>(rank)][static_cast<size_t>(place)];
      };
      ASSERT_NE(move.from_rank, move.to_rank);
      ASSERT_EQ(at(now, move.from_rank, move.from_place), move.expert);
      at(moved, move.to_rank, move.to_place) = move.expert;
    }
    ASSERT_EQ(moved, next);
  }
}

}  // namespace
}  // namespace ladder

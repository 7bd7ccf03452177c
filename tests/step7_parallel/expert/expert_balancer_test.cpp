// Task 7.9.balance: how many copies each expert gets, and on which ranks they are.
#include "step7_parallel/expert/expert_balancer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "step1_layers/core/error.h"
#include "tests/step7_parallel/balancer_problem.h"

namespace ladder {
namespace {

using testing::BalancerProblem;
using testing::copies_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Loads = std::vector<int64_t>;

std::string error_of(int64_t experts, int64_t ranks, int64_t num_redundant) {
  try {
    balance_experts(Loads(static_cast<size_t>(experts), 1), ranks, num_redundant);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Task7_9_Balance, TheExampleOfTheHeader) {
  const Loads loads = {90, 30, 20, 20};
  const ExpertPlacement placement = balance_experts(loads, 2, 2);
  EXPECT_THAT(placement.rank_experts, ElementsAre(ElementsAre(0, 2, 1), ElementsAre(0, 3, 1)));
  EXPECT_EQ(imbalance(loads, placement), 1.0);
  EXPECT_EQ(imbalance(loads, {{{0, 1}, {2, 3}}}), 1.5);
}

// Among equals the lowest comes first.
TEST(Task7_9_Balance, OfEqualLoadsTheFirstExpertsGetTheCopies) {
  EXPECT_THAT(balance_experts(Loads(4, 1), 2, 2).rank_experts,
              ElementsAre(ElementsAre(2, 0, 1), ElementsAre(3, 0, 1)));
  EXPECT_THAT(balance_experts(Loads(4, 7), 4, 0).rank_experts,
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(3)));
}

TEST(Task7_9_Balance, ExpertsThatTheRanksDoNotDivideAreFilledUp) {
  const Loads loads = {5, 1, 1, 1, 1, 1};
  const ExpertPlacement placement = balance_experts(loads, 4, 2);
  EXPECT_THAT(copies_of(placement, 6), ElementsAre(3, 1, 1, 1, 1, 1));
  EXPECT_EQ(imbalance(loads, placement), (5.0 / 3 + 1) / (10.0 / 4));
}

TEST(Task7_9_Balance, EveryExpertIsThereOnNoRankTwiceAndRanksHaveEqualNumbers) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 500; ++round) {
    const BalancerProblem problem(random, 16, 6);
    EXPECT_TRUE(problem.is_placed_well(problem.balanced())) << problem.str();
  }
}

// No other numbers of copies leave a copy with fewer tokens than the most that one has here.
TEST(Task7_9_Balance, CopiesGoWhereTheMostTokensAre) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 300; ++round) {
    const BalancerProblem problem(random, 8, 5);
    EXPECT_EQ(problem.most_per_copy(copies_of(problem.balanced(), std::ssize(problem.loads))),
              problem.least_most_per_copy())
        << problem.str();
  }
}

// The last copies of expert 5 find room on rank 0 alone.
TEST(Task7_9_Balance, CopiesThatMeetOnARankArePutApart) {
  const BalancerProblem problem({2, 1, 9, 1, 1, 1, 1}, 3, 8);
  EXPECT_TRUE(problem.is_placed_well(problem.balanced())) << problem.str();
}

// Few experts that most tokens want: from several times the mean to little more than it.
TEST(Task7_9_Balance, SkewedLoadsBecomeEven) {
  testing::Random random(1);
  for (const int64_t ranks : {2, 4, 8}) {
    Loads loads(64);
    for (size_t expert = 0; expert < loads.size(); ++expert)
      loads[expert] = static_cast<int64_t>(1e5 / (1.0 + static_cast<double>(expert)));
    std::shuffle(loads.begin(), loads.end(), random.engine());
    const double without = imbalance(loads, balance_experts(Loads(64, 1), ranks, 0)),
                 packed = imbalance(loads, balance_experts(loads, ranks, 0)),
                 copied = imbalance(loads, balance_experts(loads, ranks, 16));
    EXPECT_LE(packed, without) << ranks << " ranks";
    EXPECT_LE(copied, packed) << ranks << " ranks";
    EXPECT_LT(copied, 1.02) << ranks << " ranks";
  }
}

// The longest first: in the order of their numbers the largest would come last, on top of an even rest.
TEST(Task7_9_Balance, TheLargestArePackedFirst) {
  const Loads loads = {1, 1, 1, 1, 2, 4};
  EXPECT_EQ(imbalance(loads, balance_experts(loads, 2, 0)), 6.0 / 5.0);
  EXPECT_EQ(imbalance(Loads{1, 2, 3, 4, 5, 6, 7, 8}, balance_experts(Loads{1, 2, 3, 4, 5, 6, 7, 8}, 2, 0)),
            1.0);
}

TEST(Task7_9_Balance, WithoutTokensAllIsEven) {
  EXPECT_EQ(imbalance(Loads(4, 0), balance_experts(Loads(4, 0), 2, 2)), 1.0);
  EXPECT_EQ(imbalance(Loads{8, 0, 0, 0}, {{{0}, {1}, {2}, {3}}}), 4.0);
}

TEST(Task7_9_Balance, NumbersThatDoNotFitAreNamed) {
  EXPECT_THAT(error_of(6, 4, 0), HasSubstr("6 experts"));
  EXPECT_THAT(error_of(6, 4, 0), HasSubstr("expected 2, 6, 10, ... or 18"));
  EXPECT_THAT(error_of(2, 2, 1), HasSubstr("expected 0 or 2"));
  EXPECT_THAT(error_of(4, 2, 6), HasSubstr("expected 0, 2 or 4"));
  EXPECT_THAT(error_of(4, 1, 1), HasSubstr("expected 0"));
  EXPECT_EQ(error_of(4, 2, 4), "no error");
  EXPECT_NE(error_of(2, 4, 2), "no error");
  EXPECT_NE(error_of(4, 2, -2), "no error");
  EXPECT_THROW(balance_experts(Loads{3, -1}, 2, 0), Error);
}

}  // namespace
}  // namespace ladder

// Task 7.9.balance: random loads on more ranks than the public tests have.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/step7_parallel/balancer_problem.h"

namespace ladder {
namespace {

using testing::BalancerProblem;
using testing::copies_of;

TEST(Hidden7_9_Balance, EveryExpertIsThereOnNoRankTwiceAndRanksHaveEqualNumbers) {
  testing::Random random(testing::fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 500; ++round) {
    const BalancerProblem problem(random, 24, 8);
    EXPECT_TRUE(problem.is_placed_well(problem.balanced())) << problem.str();
  }
}

TEST(Hidden7_9_Balance, CopiesGoWhereTheMostTokensAre) {
  testing::Random random(testing::fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 200; ++round) {
    const BalancerProblem problem(random, 12, 6);
    EXPECT_EQ(problem.most_per_copy(copies_of(problem.balanced(), std::ssize(problem.loads))),
              problem.least_most_per_copy())
        << problem.str();
  }
}

// Of equals the first: all have as many tokens, and there are just as many copies as fill the ranks up.
TEST(Hidden7_9_Balance, OfEqualsTheFirstExpertsGetTheCopies) {
  testing::Random random(testing::fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 50; ++round) {
    const int64_t ranks = random.integer(2, 8), full = random.integer(2, 5),
                  copies = random.integer(1, ranks - 1);
    const std::vector<int64_t> loads(static_cast<size_t>(full * ranks - copies), random.integer(1, 1000));
    std::vector<int64_t> expected(loads.size(), 1);
    std::fill_n(expected.begin(), copies, 2);
    EXPECT_EQ(copies_of(balance_experts(loads, ranks, copies), std::ssize(loads)), expected)
        << loads.size() << " experts, " << ranks << " ranks";
  }
}

// The last copies of an expert find room only where it is already, whatever a token counts.
TEST(Hidden7_9_Balance, CopiesThatMeetOnARankArePutApart) {
  testing::Random random(testing::fresh_seed());
  SCOPED_TRACE(random.describe());
  const int64_t factor = int64_t{1} << random.integer(1, 40);  // sums of quotients round as without it
  std::vector<int64_t> loads = {2, 1, 9, 1, 1, 1, 1};
  for (int64_t& load : loads) load *= factor;
  const BalancerProblem problem(loads, 3, 8);
  EXPECT_TRUE(problem.is_placed_well(problem.balanced())) << problem.str();
}

// Loads that fall off as one over the rank of the expert, a quarter more copies than experts.
TEST(Hidden7_9_Balance, SkewedLoadsBecomeEven) {
  testing::Random random(testing::fresh_seed());
  SCOPED_TRACE(random.describe());
  for (const int64_t ranks : {2, 4, 8, 16}) {
    std::vector<int64_t> loads;
    for (int64_t expert = 1; expert <= 128; ++expert) loads.push_back(random.integer(90000, 110000) / expert);
    std::shuffle(loads.begin(), loads.end(), random.engine());
    EXPECT_LT(imbalance(loads, balance_experts(loads, ranks, 32)), 1.05) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace ladder

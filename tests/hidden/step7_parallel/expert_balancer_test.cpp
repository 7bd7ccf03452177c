// Task 7.9.balance: random loads on more ranks than the public tests have.
#include <gtest/gtest.h>

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

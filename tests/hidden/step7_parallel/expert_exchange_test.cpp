// Task 7.9: random tokens and experts on random ranks, by the all-to-all.
#include <gtest/gtest.h>

#include "tests/step7_parallel/expert_problem.h"

namespace ladder {
namespace {

using testing::close_to;
using testing::ExpertProblem;
using testing::MoeSizes;

const Variant<ExpertExchangeArgs>& method() {
  return expert_exchange_variants()[1];
}

TEST(Hidden7_9_Exchange, ManyRanksWithAndWithoutTokens) {
  testing::Random random(testing::fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 80; ++round) {
    const int64_t experts = random.integer(1, 24);
    const MoeSizes sizes{random.integer(0, 20), random.integer(1, std::min<int64_t>(experts, 8)), experts, 8,
                         4};
    const ExpertProblem problem(random, static_cast<int>(random.integer(1, 8)), sizes,
                                round % 3 == 0 ? DType::bf16 : DType::f32, round % 2 == 0);
    EXPECT_TRUE(close_to(problem.over(communicator_kind("threads"), method()), problem.expected()))
        << problem.str();
  }
}

TEST(Hidden7_9_Exchange, SendsEachTokenOncePerRankThatHasAnExpertOfIt) {
  testing::Random random(testing::fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 20; ++round) {
    const MoeSizes sizes{random.integer(1, 15), 3, 9, 8, 4};
    const int ranks = static_cast<int>(random.integer(2, 5));
    const ExpertProblem problem(random, ranks, sizes, DType::f32, true);
    std::vector<int64_t> sent(static_cast<size_t>(ranks)), expected(sent.size(), (ranks - 1) * ranks * 4);
    problem.over(communicator_kind("threads"), method(), &sent);
    for (int rank = 0; rank < ranks; ++rank)
      for (int64_t t = problem.begins[static_cast<size_t>(rank)];
           t < problem.begins[static_cast<size_t>(rank) + 1]; ++t) {
        std::vector<bool> goes(static_cast<size_t>(ranks));
        for (int64_t j = 0; j < 3; ++j)
          if (const int32_t e = problem.scene.expert_ids.at<int32_t>({t, j}); e >= 0)
            goes[static_cast<size_t>(problem.rank_of[static_cast<size_t>(e)])] = true;
        for (int to = 0; to < ranks; ++to)
          if (to != rank && goes[static_cast<size_t>(to)]) {
            expected[static_cast<size_t>(rank)] += 8 * 4 + 3 * 4 + 3 * 4;  // the token, its ids and weights
            expected[static_cast<size_t>(to)] += 8 * 4;                    // its part
          }
      }
    EXPECT_EQ(sent, expected) << problem.str();
  }
}

}  // namespace
}  // namespace ladder

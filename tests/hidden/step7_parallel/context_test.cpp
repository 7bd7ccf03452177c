// Task 7.10: random prompts over random numbers of ranks, and random parts in any order.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "step7_parallel/communicators/kinds.h"
#include "step7_parallel/context/lse_merge.h"
#include "step7_parallel/context/ring_attention.h"
#include "tests/step7_parallel/context_problem.h"

namespace ladder {
namespace {

TEST(Hidden7_10_Zigzag, EveryTokenOnceInOrderAndWorkAlike) {
  testing::Random random(testing::fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 200; ++round) {
    const int ranks = static_cast<int>(random.integer(1, 9));
    const int64_t length = random.integer(0, round % 2 == 0 ? 40 : 100000);
    std::vector<TokenSpan> spans;
    int64_t pairs = 0, most = 0, least = std::numeric_limits<int64_t>::max();
    for (int rank = 0; rank < ranks; ++rank) {
      const ZigzagShare share = zigzag_share(length, ranks, rank);
      spans.push_back(share.early);
      spans.push_back(share.late);
      const int64_t work = causal_pairs(share);
      pairs += work;
      most = std::max(most, work);
      least = std::min(least, work);
    }
    ASSERT_EQ(pairs, length * (length + 1) / 2) << length << " tokens, " << ranks << " ranks";
    ASSERT_LE(most - least, 2 * length) << length << " tokens, " << ranks << " ranks";
    std::sort(spans.begin(), spans.end(), [](const TokenSpan& a, const TokenSpan& b) {
      return a.begin < b.begin || (a.begin == b.begin && a.end < b.end);
    });
    int64_t next = 0;
    for (const TokenSpan& span : spans) {
      ASSERT_EQ(span.begin, next) << length << " tokens, " << ranks << " ranks";
      ASSERT_LE(span.size(), (length + 2 * ranks - 1) / (2 * ranks))
          << length << " tokens, " << ranks << " ranks";
      next = span.end;
    }
    ASSERT_EQ(next, length) << length << " tokens, " << ranks << " ranks";
  }
}

// Parts of random weight, some of them of nothing, merged one after another, against one sum in double.
TEST(Hidden7_10_LseMerge, ManyParts) {
  testing::Random random(testing::fresh_seed());
  SCOPED_TRACE(random.describe());
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (int round = 0; round < 100; ++round) {
    const double base = random.uniform(-300, 300);
    const Tensor out = testing::poisoned({1, 1, 1}, DType::f32), lse = Tensor::empty({1, 1}, DType::f32);
    lse.at<float>({0, 0}) = random.one_of<float>({-kInf, kInf, std::nanf("")});
    double weights = 0, sum = 0;
    for (int64_t i = random.integer(1, 8); i > 0; --i) {
      const Tensor part = random.normal({1, 1, 1}, DType::f32), part_lse = Tensor::empty({1, 1}, DType::f32);
      float& weight = part_lse.at<float>({0, 0});
      weight = static_cast<float>(base + random.uniform(-4, 4));
      if (random.integer(0, 3) == 0) {
        weight = random.one_of<float>({-kInf, kInf, std::nanf("")});
        part.at<float>({0, 0, 0}) = random.one_of<float>({std::nanf(""), kInf, 7});
      } else {
        weights += std::exp(weight - base);
        sum += std::exp(weight - base) * part.at<float>({0, 0, 0});
      }
      merge_by_lse(out, lse, part, part_lse);
    }
    if (weights == 0) {
      ASSERT_EQ(out.at<float>({0, 0, 0}), 0) << "round " << round;
      ASSERT_EQ(lse.at<float>({0, 0}), -kInf) << "round " << round;
    } else {
      ASSERT_NEAR(out.at<float>({0, 0, 0}), sum / weights, 1e-3) << "round " << round;
      ASSERT_NEAR(lse.at<float>({0, 0}), base + std::log(weights), 1e-3) << "round " << round;
    }
  }
}

TEST(Hidden7_10_Ring, RandomBatches) {
  testing::Random random(testing::fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 30; ++round) {
    std::vector<testing::ContextPart> parts;
    for (int64_t i = random.integer(1, 4); i > 0; --i)
      parts.push_back({random.integer(0, 1) * random.integer(0, 90), random.integer(0, 60)});
    const testing::ContextProblem problem(random, static_cast<int>(random.integer(1, 5)), parts);
    ASSERT_TRUE(problem.is_solved_by(ring_attention)) << problem.str();
  }
}

TEST(Hidden7_10_Ring, LargeMessages) {
  testing::Random random(testing::fresh_seed());
  SCOPED_TRACE(random.describe());
  const int ranks = static_cast<int>(random.integer(2, 4));
  const testing::ContextProblem problem(random, ranks, {{30000 * ranks, random.integer(1, 9)}}, 1, 1);
  const auto errors = communicator_kind("shared_memory")
                          .run(ranks, std::chrono::seconds(10), [&](int rank, Communicator& group) {
                            problem.run(ring_attention, rank, group);
                          });
  EXPECT_EQ(errors, std::vector<std::string>(static_cast<size_t>(ranks))) << problem.str();
}

}  // namespace
}  // namespace ladder

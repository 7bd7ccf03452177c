#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <vector>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/error.h"
#include "step7_parallel/communicators/kinds.h"
#include "step7_parallel/context/lse_merge.h"
#include "step7_parallel/context/ring_attention.h"
#include "tests/step7_parallel/context_problem.h"

namespace ladder {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Task7_10_Zigzag, EveryTokenIsOnOneRankAndChunksAreEqualToWithinAToken) {
  for (int ranks = 1; ranks <= 5; ++ranks)
    for (int64_t length = 0; length <= 6 * ranks + 1; ++length) {
      std::vector<int> holders(static_cast<size_t>(length), 0);
      for (int rank = 0; rank < ranks; ++rank) {
        const ZigzagShare share = zigzag_share(length, ranks, rank);
        for (const TokenSpan& span : {share.early, share.late}) {
          EXPECT_GE(span.size(), length / (2 * ranks))
              << length << " tokens, rank " << rank << " of " << ranks;
          EXPECT_LE(span.size(), (length + 2 * ranks - 1) / (2 * ranks))
              << length << " tokens, rank " << rank;
          for (int64_t p = span.begin; p < span.end; ++p) ++holders.at(static_cast<size_t>(p));
        }
      }
      EXPECT_EQ(holders, std::vector<int>(static_cast<size_t>(length), 1)) << length << " tokens, " << ranks;
    }
}

TEST(Task7_10_Zigzag, TheLastTokenIsOnRankZero) {
  EXPECT_EQ(zigzag_share(8, 2, 0).early, (TokenSpan{0, 2}));
  EXPECT_EQ(zigzag_share(8, 2, 0).late, (TokenSpan{6, 8}));
  EXPECT_EQ(zigzag_share(8, 2, 1).early, (TokenSpan{2, 4}));
  EXPECT_EQ(zigzag_share(8, 2, 1).late, (TokenSpan{4, 6}));
}

TEST(Task7_10_Zigzag, AllRanksHaveTheSameWork) {
  EXPECT_EQ(causal_pairs(zigzag_share(8, 2, 0)), 18);
  EXPECT_EQ(causal_pairs(zigzag_share(8, 2, 1)), 18);
  for (const int ranks : {2, 3, 4, 8}) {
    const int64_t length = 2 * ranks * 7;
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_EQ(causal_pairs(zigzag_share(length, ranks, rank)) * ranks, length * (length + 1) / 2)
          << "rank " << rank << " of " << ranks;
  }
}

TEST(Task7_10_Zigzag, RefusesWhatIsNoShare) {
  EXPECT_THROW(zigzag_share(-1, 2, 0), Error);
  EXPECT_THROW(zigzag_share(4, 0, 0), Error);
  EXPECT_THROW(zigzag_share(4, 2, 2), Error);
}

// The merge of two parts of one row, each of two values.
struct Merged {
  std::vector<float> out;
  float lse;
};
Merged merge(std::vector<float> a, float lse_a, std::vector<float> b, float lse_b) {
  const Tensor out = Tensor::from<float>(a, {1, 1, 2}), lse = Tensor::from<float>(std::vector{lse_a}, {1, 1});
  merge_by_lse(out, lse, Tensor::from<float>(b, {1, 1, 2}), Tensor::from<float>(std::vector{lse_b}, {1, 1}));
  return {{out.data<float>()[0], out.data<float>()[1]}, lse.data<float>()[0]};
}

TEST(Task7_10_LseMerge, WeighsByNaturalLogarithms) {
  const Merged m = merge({1, 8}, std::log(1.0f), {5, 4}, std::log(3.0f));
  EXPECT_NEAR(m.out[0], 4.0f, 1e-5);
  EXPECT_NEAR(m.out[1], 5.0f, 1e-5);
  EXPECT_NEAR(m.lse, std::log(4.0f), 1e-6);
}

TEST(Task7_10_LseMerge, LargeAndSmallScoresFit) {
  for (const float base : {-500.0f, 500.0f}) {
    const Merged m = merge({1, 8}, base, {5, 4}, base);
    EXPECT_NEAR(m.out[0], 3.0f, 1e-3) << "lse " << base;
    EXPECT_NEAR(m.out[1], 6.0f, 1e-3) << "lse " << base;
    EXPECT_NEAR(m.lse, base + std::log(2.0f), 1e-3);
  }
}

TEST(Task7_10_LseMerge, APartWithoutKeysIsLeftOutWhateverItHolds) {
  const float nan = std::nanf("");
  for (const float nothing : {-kInf, kInf, nan}) {
    for (const Merged& m : {merge({nan, kInf}, nothing, {5, 4}, 2), merge({5, 4}, 2, {nan, kInf}, nothing)}) {
      EXPECT_EQ(m.out, (std::vector<float>{5, 4})) << "lse " << nothing;
      EXPECT_EQ(m.lse, 2) << "lse " << nothing;
    }
    const Merged m = merge({nan, 1}, nothing, {nan, 1}, -kInf);
    EXPECT_EQ(m.out, (std::vector<float>{0, 0})) << "no keys at all, lse " << nothing;
    EXPECT_EQ(m.lse, -kInf) << "no keys at all, lse " << nothing;
  }
}

TEST(Task7_10_LseMerge, RefusesOtherShapes) {
  const Tensor out = Tensor::zeros({2, 1, 4}, DType::f32), lse = Tensor::zeros({2, 1}, DType::f32);
  EXPECT_THROW(merge_by_lse(out, lse, Tensor::zeros({1, 1, 4}, DType::f32), lse), Error);
  EXPECT_THROW(merge_by_lse(out, lse, out, Tensor::zeros({1, 2}, DType::f32)), Error);
}

TEST(Task7_10_Ring, EqualsOneRankForEveryLengthAroundTheMultiples) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (const int ranks : {1, 2, 3, 4})
    for (const int64_t length : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 47, 48, 49}) {
      const testing::ContextProblem problem(random, ranks, {{0, length}});
      EXPECT_TRUE(problem.is_solved_by(ring_attention)) << problem.str();
    }
}

TEST(Task7_10_Ring, ChunksSeeAllThatIsCachedOnWhateverRankItLies) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (const int ranks : {2, 3, 4})
    for (const int64_t cached : {1, 2, 16, 33})
      for (const int64_t length : {1, 3, 2 * ranks, 35}) {
        const testing::ContextProblem problem(random, ranks, {{cached, length}});
        EXPECT_TRUE(problem.is_solved_by(ring_attention)) << problem.str();
      }
}

TEST(Task7_10_Ring, PromptsOfABatchDoNotSeeEachOther) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 12; ++round) {
    std::vector<testing::ContextPart> parts;
    for (int64_t i = random.integer(1, 5); i > 0; --i)
      parts.push_back({random.integer(0, 1) * random.integer(0, 40), random.integer(0, 40)});
    const testing::ContextProblem problem(random, static_cast<int>(random.integer(2, 4)), parts);
    EXPECT_TRUE(problem.is_solved_by(ring_attention)) << problem.str();
  }
}

// Messages that are larger than what a transport holds: a send ends when its receiver takes it.
TEST(Task7_10_Ring, ASendMayWaitForItsReceiver) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (const int ranks : {2, 3}) {
    const testing::ContextProblem problem(random, ranks, {{40000 * ranks, ranks}}, 1, 1);
    const auto errors = communicator_kind("shared_memory")
                            .run(ranks, std::chrono::seconds(60), [&](int rank, Communicator& group) {
                              problem.run(ring_attention, rank, group);
                            });
    EXPECT_THAT(errors, ::testing::Each("")) << problem.str();
  }
}

// One key that the last query's score singles out, at every tenth of the prompt: its value is the answer.
TEST(Task7_10_Ring, FindsANeedleAtEveryTenth) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  constexpr int64_t kLength = 201;
  for (int tenth = 0; tenth <= 10; ++tenth) {
    const testing::ContextProblem problem(random, 4, {{0, kLength}}, 1, 2);
    const int64_t place = (kLength - 1) * tenth / 10, dim = problem.q(0).dim(2);
    for (int64_t i = 0; i < dim; ++i) {
      problem.k(0).at<float>({place, 0, i}) = i % 2 == 0 ? 8.0f : -8.0f;
      problem.q(0).at<float>({kLength - 1, 1, i}) = i % 2 == 0 ? 8.0f : -8.0f;
    }
    const Tensor out = problem.over_threads(ring_attention).front();
    for (int64_t i = 0; i < dim; ++i)
      EXPECT_NEAR(out.at<float>({kLength - 1, 1, i}), problem.v(0).at<float>({place, 0, i}), 1e-4)
          << "at " << place;
  }
}

TEST(Task7_10_Ring, RowsThatAreNotTheSharesAreAnError) {
  Arena arena;
  OpContext ctx;
  ctx.arena = &arena;
  const Tensor t = Tensor::zeros({4, 2, 8}, DType::f32), one_head = Tensor::zeros({4, 1, 8}, DType::f32);
  const auto args = [](std::vector<ContextPrompt> prompts, const Tensor& q, const Tensor& k,
                       const Tensor& v) {
    return ContextAttentionArgs{.prompts = std::move(prompts), .q = q, .k = k, .v = v, .out = q};
  };
  EXPECT_NO_THROW(ring_attention(ctx, args({{4, {}}}, t.clone(), t, t)));
  EXPECT_THROW(ring_attention(ctx, args({{5, {}}}, t, t, t)), Error);
  EXPECT_THROW(ring_attention(ctx, args({{4, {1}}}, t, t, t)), Error);
  EXPECT_THROW(ring_attention(ctx, args({{4, {0, 0}}}, t, t, t)), Error) << "cached keys of two ranks";
  EXPECT_THROW(ring_attention(ctx, args({{4, {}}}, t, t, one_head)), Error);
}

// Every other rank learns that one is gone, in the middle of the ring.
TEST(Task7_10_Ring, ARankThatDiesEndsAll) {
  testing::Random random;
  const testing::ContextProblem problem(random, 3, {{0, 60}}, 1, 1);
  const auto started = std::chrono::steady_clock::now();
  const auto errors =
      communicator_kind("shared_memory").run(3, std::chrono::seconds(20), [&](int rank, Communicator& group) {
        if (rank == 1) {  // it takes part in the first step and no more
          OpContext ctx;
          const ZigzagShare first = zigzag_share(60, 3, 0);
          group.recv(ctx, Tensor::empty({first.size(), 1, 16}, DType::f32), 0);
          _exit(3);
        }
        problem.run(ring_attention, rank, group);
      });
  EXPECT_THAT(errors, ::testing::Each(::testing::Not("")));
  EXPECT_THAT(errors[1], ::testing::HasSubstr("exit code 3")) << "it was not sent the first step's keys";
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(15));
}

}  // namespace
}  // namespace ladder

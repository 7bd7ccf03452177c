#include "step7_parallel/context/ring_attention.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <vector>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/error.h"
#include "step1_layers/distributed/local_group.h"
#include "step7_parallel/context/lse_merge.h"
#include "step7_parallel/context/zigzag.h"
#include "tests/support/numerics.h"

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

// Attention on one rank, in double.
std::vector<double> on_one_rank(const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
  const int64_t heads = q.dim(1), group = heads / k.dim(1), dim = q.dim(2);
  std::vector<double> out(static_cast<size_t>(q.numel()), 0.0);
  for (int64_t row = 0; row < q.dim(0); ++row)
    for (int64_t head = 0; head < heads; ++head) {
      double sum = 0;
      double* o = out.data() + (row * heads + head) * dim;
      for (int64_t j = 0; j <= row; ++j) {
        double score = 0;
        for (int64_t i = 0; i < dim; ++i)
          score += static_cast<double>(q.at<float>({row, head, i})) * k.at<float>({j, head / group, i});
        const double weight = std::exp(score * scale);
        sum += weight;
        for (int64_t i = 0; i < dim; ++i) o[i] += weight * v.at<float>({j, head / group, i});
      }
      for (int64_t i = 0; i < dim; ++i) o[i] /= sum;
    }
  return out;
}

// This rank's rows of a tensor [length, ...], or back into it.
Tensor share_of(const Tensor& whole, const ZigzagShare& share) {
  const Tensor part = Tensor::empty({share.size(), whole.dim(1), whole.dim(2)}, DType::f32);
  part.narrow(0, 0, share.early.size()).copy_from(whole.narrow(0, share.early.begin, share.early.size()));
  part.narrow(0, share.early.size(), share.late.size())
      .copy_from(whole.narrow(0, share.late.begin, share.late.size()));
  return part;
}
void put_back(const Tensor& part, const ZigzagShare& share, const Tensor& whole) {
  whole.narrow(0, share.early.begin, share.early.size()).copy_from(part.narrow(0, 0, share.early.size()));
  whole.narrow(0, share.late.begin, share.late.size())
      .copy_from(part.narrow(0, share.early.size(), share.late.size()));
}

Tensor over_ranks(int ranks, const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
  const Tensor out = testing::poisoned(q.shape(), DType::f32);
  run_ranks(
      ranks,
      [&](int rank, const ParallelContext& parallel) {
        Arena arena;
        OpContext ctx;
        ctx.arena = &arena;
        const ZigzagShare share = zigzag_share(q.dim(0), ranks, rank);
        const Tensor part = testing::poisoned({share.size(), q.dim(1), q.dim(2)}, DType::f32);
        ring_attention(ctx, *parallel.tp,
                       {.length = q.dim(0),
                        .q = share_of(q, share),
                        .k = share_of(k, share),
                        .v = share_of(v, share),
                        .scale = scale,
                        .out = part});
        put_back(part, share, out);
      },
      std::chrono::seconds(10));
  return out;
}

TEST(Task7_10_Ring, EqualsOneRankForEveryLengthAroundTheMultiples) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (const int ranks : {1, 2, 3, 4})
    for (const int64_t length : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 47, 48, 49}) {
      const int64_t kv_heads = random.integer(1, 2), heads = kv_heads * random.integer(1, 3);
      const Tensor q = random.normal({length, heads, 16}, DType::f32),
                   k = random.normal({length, kv_heads, 16}, DType::f32),
                   v = random.normal({length, kv_heads, 16}, DType::f32);
      EXPECT_TRUE(testing::close_to(over_ranks(ranks, q, k, v, 0.25), on_one_rank(q, k, v, 0.25)))
          << length << " tokens, " << ranks << " ranks, " << heads << " heads, of keys " << kv_heads;
    }
}

// One key that the last query's score singles out, at every tenth of the prompt: its value is the answer.
TEST(Task7_10_Ring, FindsANeedleAtEveryTenth) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  constexpr int64_t kLength = 201, kDim = 16;
  for (int tenth = 0; tenth <= 10; ++tenth) {
    const int64_t place = (kLength - 1) * tenth / 10;
    const Tensor q = random.normal({kLength, 2, kDim}, DType::f32),
                 k = random.normal({kLength, 1, kDim}, DType::f32),
                 v = random.normal({kLength, 1, kDim}, DType::f32);
    for (int64_t i = 0; i < kDim; ++i) {
      k.at<float>({place, 0, i}) = i % 2 == 0 ? 8.0f : -8.0f;
      q.at<float>({kLength - 1, 1, i}) = i % 2 == 0 ? 8.0f : -8.0f;
    }
    const Tensor out = over_ranks(4, q, k, v, 0.25);
    for (int64_t i = 0; i < kDim; ++i)
      EXPECT_NEAR(out.at<float>({kLength - 1, 1, i}), v.at<float>({place, 0, i}), 1e-4) << "at " << place;
  }
}

TEST(Task7_10_Ring, RowsThatAreNotTheSharesAreAnError) {
  Arena arena;
  OpContext ctx;
  ctx.arena = &arena;
  const Tensor t = Tensor::zeros({4, 2, 8}, DType::f32);
  EXPECT_THROW(
      ring_attention(ctx, single_rank(), {.length = 5, .q = t, .k = t, .v = t, .scale = 1, .out = t}), Error);
  EXPECT_THROW(
      ring_attention(
          ctx, single_rank(),
          {.length = 4, .q = t, .k = t, .v = Tensor::zeros({4, 1, 8}, DType::f32), .scale = 1, .out = t}),
      Error);
}

}  // namespace
}  // namespace ladder

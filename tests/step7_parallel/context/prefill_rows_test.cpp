// Which rows of a step each rank of a context-parallel group computes.
#include "step7_parallel/context/prefill_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "step1_layers/core/error.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using Shares = std::vector<std::vector<RowSpan>>;

Shares share_out(const std::vector<int64_t>& lengths, int ranks) {
  std::vector<int32_t> starts{0};
  for (const int64_t length : lengths) starts.push_back(starts.back() + static_cast<int32_t>(length));
  return share_out_rows(starts, ranks);
}

std::vector<int64_t> rows_of(const Shares& shares) {
  std::vector<int64_t> rows;
  for (const auto& spans : shares) rows.push_back(num_rows(spans));
  return rows;
}

int64_t spread(const std::vector<int64_t>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return *most - *least;
}

TEST(Task7_12_Rows, OfOnePromptAreItsZigzag) {
  EXPECT_EQ(share_out({8}, 2), (Shares{{{0, {0, 2}}, {0, {6, 8}}}, {{0, {2, 4}}, {0, {4, 6}}}}));
}

TEST(Task7_12_Rows, OfSequencesThatDecodeAreDealtOut) {
  EXPECT_EQ(share_out({8, 1, 1, 1}, 2), (Shares{{{0, {0, 2}}, {0, {6, 8}}, {1, {0, 1}}, {3, {0, 1}}},
                                                {{0, {2, 4}}, {0, {4, 6}}, {2, {0, 1}}}}));
  EXPECT_THAT(rows_of(share_out(std::vector<int64_t>(256, 1), 4)), ::testing::Each(64));
}

// Lengths around every multiple that matters, in any order, sequences without new tokens among them.
TEST(Task7_12_Rows, AreEachOnOneRankAndAboutAsManyOnEach) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (int ranks = 1; ranks <= 5; ++ranks)
    for (int round = 0; round < 60; ++round) {
      std::vector<int64_t> lengths;
      for (int64_t count = random.integer(1, 40); count > 0; --count)
        lengths.push_back(round % 3 == 0 ? random.integer(0, 3) : random.integer(0, 5 * ranks + 1));
      const Shares shares = share_out(lengths, ranks);
      ASSERT_EQ(std::ssize(shares), ranks);
      std::vector<std::vector<int>> holders;
      for (const int64_t length : lengths) holders.emplace_back(static_cast<size_t>(length), 0);
      for (const auto& spans : shares) {
        for (const auto& [sequence, tokens] : spans) {
          EXPECT_GT(tokens.size(), 0);
          for (int64_t p = tokens.begin; p < tokens.end; ++p)
            ++holders.at(static_cast<size_t>(sequence)).at(static_cast<size_t>(p));
        }
        EXPECT_TRUE(std::is_sorted(spans.begin(), spans.end(), [](const RowSpan& a, const RowSpan& b) {
          return std::pair(a.sequence, a.tokens.begin) < std::pair(b.sequence, b.tokens.begin);
        })) << "in the order of the step";
      }
      for (const auto& of_sequence : holders) EXPECT_THAT(of_sequence, ::testing::Each(1));
      EXPECT_LE(spread(rows_of(shares)), 2) << ranks << " ranks, " << ::testing::PrintToString(lengths);
    }
}

// Many short prompts of one length, of which one rank's share is always the largest.
TEST(Task7_12_Rows, OfManyEqualPromptsDoNotAddUpOnOneRank) {
  for (const int ranks : {2, 3, 4, 8})
    for (int64_t length = 1; length <= 4 * ranks; ++length)
      EXPECT_LE(spread(rows_of(share_out(std::vector<int64_t>(50, length), ranks))), 2)
          << length << " tokens on " << ranks << " ranks";
}

TEST(Task7_12_Rows, WorkIsEqualToo) {
  for (const int ranks : {2, 3, 4}) {
    const int64_t length = 2 * ranks * 50;
    for (const auto& spans : share_out({length, length, length}, ranks)) {
      int64_t pairs = 0;
      for (const auto& [sequence, tokens] : spans) pairs += causal_pairs({tokens, {}});
      EXPECT_EQ(pairs * ranks, 3 * length * (length + 1) / 2);
    }
  }
}

TEST(Task7_12_Rows, NeedARank) {
  EXPECT_THROW(share_out({3}, 0), Error);
}

}  // namespace
}  // namespace ladder

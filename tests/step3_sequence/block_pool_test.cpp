#include "step3_sequence/block/block_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <list>
#include <random>

#include "step1_layers/core/error.h"

namespace ladder {
namespace {

using Ids = std::vector<int32_t>;

TEST(Task3_2_BlockPool, StartsWithAllBlocksInOrder) {
  const BlockPool pool(4);
  EXPECT_EQ(pool.free_ids(), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(pool.num_free(), 4);
  EXPECT_EQ(pool.num_blocks(), 4);
}

TEST(Task3_2_BlockPool, TakesFromFrontMiddleAndBack) {
  BlockPool pool(5);
  EXPECT_EQ(pool.take_front(), 0);
  pool.take(2);
  pool.take(4);
  EXPECT_EQ(pool.free_ids(), (Ids{1, 3}));
  EXPECT_FALSE(pool.is_free(2));
  EXPECT_TRUE(pool.is_free(3));
}

TEST(Task3_2_BlockPool, GivesBackToEitherEnd) {
  BlockPool pool(4);
  for (int i = 0; i < 4; ++i) pool.take_front();
  EXPECT_EQ(pool.num_free(), 0);
  pool.push_back(2);
  pool.push_back(0);
  pool.push_front(3);
  EXPECT_EQ(pool.free_ids(), (Ids{3, 2, 0}));
}

TEST(Task3_2_BlockPool, ATakenBlockHasNoLinks) {
  BlockPool pool(4);
  pool.take(2);
  EXPECT_EQ(pool.block(2).previous, -1);
  EXPECT_EQ(pool.block(2).next, -1);
}

// The links of an emptied list must close on the sentinel, or the next block given back is lost.
TEST(Task3_2_BlockPool, CanBeEmptiedAndFilledAgain) {
  BlockPool pool(1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(pool.take_front(), 0);
    EXPECT_EQ(pool.num_free(), 0);
    EXPECT_TRUE(pool.free_ids().empty());
    EXPECT_EQ(pool.front(), pool.num_blocks());
    i % 2 ? pool.push_back(0) : pool.push_front(0);
    EXPECT_EQ(pool.free_ids(), Ids{0});
  }
}

TEST(Task3_2_BlockPool, RefusesSizesThatMakeNoSense) {
  EXPECT_THROW(BlockPool(0), Error);
  EXPECT_THROW(BlockPool(-1), Error);
  EXPECT_THROW(BlockPool(int64_t{1} << 31), Error);
  EXPECT_THROW(BlockPool((int64_t{1} << 32) + 1), Error) << "1, if only the lower 32 bits are looked at";
}

// Milliseconds, whatever the length of the list; one that walks along it for each block takes seconds.
constexpr int32_t kManyBlocks = 60'000;

TEST(Task3_2_BlockPool, TakesFromTheBackOfALongListInConstantTime) {
  BlockPool pool(kManyBlocks);
  const auto begin = std::chrono::steady_clock::now();
  for (int32_t id = kManyBlocks - 1; id >= 0; --id) pool.take(id);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_LT(seconds.count(), 1.0);
}

TEST(Task3_2_BlockPool, GivesBackToTheBackOfALongListInConstantTime) {
  BlockPool pool(kManyBlocks);
  const auto begin = std::chrono::steady_clock::now();
  for (int32_t i = 0; i < kManyBlocks; ++i) pool.push_back(pool.take_front());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(pool.front(), 0);
  EXPECT_LT(seconds.count(), 1.0);
}

TEST(Task3_2_BlockPool, DoesWhatAStandardListDoes) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const int64_t num_blocks = 1 + random() % 40;
    BlockPool pool(num_blocks);
    std::list<int32_t> model;
    for (int32_t id = 0; id < num_blocks; ++id) model.push_back(id);
    Ids taken;
    for (int event = 0; event < 300; ++event) {
      const uint64_t kind = random() % 4;
      if (kind == 0 && !model.empty()) {
        ASSERT_EQ(pool.take_front(), model.front());
        taken.push_back(model.front());
        model.pop_front();
      } else if (kind == 1 && !model.empty()) {
        auto any = std::next(model.begin(), random() % model.size());
        pool.take(*any);
        taken.push_back(*any);
        model.erase(any);
      } else if (kind >= 2 && !taken.empty()) {
        std::swap(taken[random() % taken.size()], taken.back());
        kind == 2 ? pool.push_front(taken.back()) : pool.push_back(taken.back());
        kind == 2 ? model.push_front(taken.back()) : model.push_back(taken.back());
        taken.pop_back();
      }
      ASSERT_EQ(pool.free_ids(), Ids(model.begin(), model.end()));
      ASSERT_EQ(pool.num_free(), std::ssize(model));
      for (const int32_t id : taken) ASSERT_FALSE(pool.is_free(id));
    }
  }
}

}  // namespace
}  // namespace ladder

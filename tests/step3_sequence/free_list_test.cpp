#include "step3_sequence/block/free_list.h"

#include <gtest/gtest.h>

#include <list>
#include <random>

#include "step1_layers/core/error.h"

namespace ladder {
namespace {

using Ids = std::vector<int32_t>;

TEST(Task3_2_FreeList, StartsWithAllBlocksInOrder) {
  const FreeList list(4);
  EXPECT_EQ(list.ids(), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(list.size(), 4);
  EXPECT_EQ(list.num_blocks(), 4);
}

TEST(Task3_2_FreeList, TakesFromFrontMiddleAndBack) {
  FreeList list(5);
  EXPECT_EQ(list.take_front(), 0);
  list.take(2);
  list.take(4);
  EXPECT_EQ(list.ids(), (Ids{1, 3}));
  EXPECT_FALSE(list.contains(2));
  EXPECT_TRUE(list.contains(3));
}

TEST(Task3_2_FreeList, GivesBackToEitherEnd) {
  FreeList list(4);
  for (int i = 0; i < 4; ++i) list.take_front();
  EXPECT_EQ(list.size(), 0);
  list.push_back(2);
  list.push_back(0);
  list.push_front(3);
  EXPECT_EQ(list.ids(), (Ids{3, 2, 0}));
}

// The links of an emptied list must close on the sentinel, or the next block given back is lost.
TEST(Task3_2_FreeList, CanBeEmptiedAndFilledAgain) {
  FreeList list(1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(list.take_front(), 0);
    EXPECT_EQ(list.size(), 0);
    EXPECT_TRUE(list.ids().empty());
    EXPECT_EQ(list.front(), list.num_blocks());
    i % 2 ? list.push_back(0) : list.push_front(0);
    EXPECT_EQ(list.ids(), Ids{0});
  }
}

TEST(Task3_2_FreeList, RefusesSizesThatMakeNoSense) {
  EXPECT_THROW(FreeList(0), Error);
  EXPECT_THROW(FreeList(-1), Error);
  EXPECT_THROW(FreeList(int64_t{1} << 31), Error);
}

TEST(Task3_2_FreeList, DoesWhatAStandardListDoes) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const int64_t num_blocks = 1 + random() % 40;
    FreeList list(num_blocks);
    std::list<int32_t> model;
    for (int32_t id = 0; id < num_blocks; ++id) model.push_back(id);
    Ids taken;
    for (int event = 0; event < 300; ++event) {
      const uint64_t kind = random() % 4;
      if (kind == 0 && !model.empty()) {
        ASSERT_EQ(list.take_front(), model.front());
        taken.push_back(model.front());
        model.pop_front();
      } else if (kind == 1 && !model.empty()) {
        auto any = std::next(model.begin(), random() % model.size());
        list.take(*any);
        taken.push_back(*any);
        model.erase(any);
      } else if (kind >= 2 && !taken.empty()) {
        std::swap(taken[random() % taken.size()], taken.back());
        kind == 2 ? list.push_front(taken.back()) : list.push_back(taken.back());
        kind == 2 ? model.push_front(taken.back()) : model.push_back(taken.back());
        taken.pop_back();
      }
      ASSERT_EQ(list.ids(), Ids(model.begin(), model.end()));
      ASSERT_EQ(list.size(), std::ssize(model));
      for (const int32_t id : taken) ASSERT_FALSE(list.contains(id));
    }
  }
}

}  // namespace
}  // namespace ladder

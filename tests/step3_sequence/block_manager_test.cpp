#include "step3_sequence/block/block_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "step1_layers/core/error.h"

namespace ladder {
namespace {

using Ids = std::vector<int32_t>;

TEST(Task3_3_BlockManager, GivesBlocksAsTokensNeedThem) {
  BlockManager blocks(4, 16);
  BlockTable table;
  EXPECT_TRUE(blocks.append(table, 1));
  EXPECT_EQ(table, (Ids{0}));
  EXPECT_TRUE(blocks.append(table, 16));  // still fits
  EXPECT_EQ(table, (Ids{0}));
  EXPECT_TRUE(blocks.append(table, 17));
  EXPECT_EQ(table, (Ids{0, 1}));
  EXPECT_EQ(blocks.num_free_blocks(), 2);
  EXPECT_EQ(blocks.num_used_blocks(), 2);
  EXPECT_EQ(blocks.ref_count(1), 1);
}

TEST(Task3_3_BlockManager, ChangesNothingWhenTheRoomIsTooSmall) {
  BlockManager blocks(3, 4);
  BlockTable table;
  EXPECT_TRUE(blocks.append(table, 4));
  EXPECT_FALSE(blocks.append(table, 17));
  EXPECT_EQ(table, (Ids{0}));
  EXPECT_EQ(blocks.pool().free_ids(), (Ids{1, 2}));
  BlockTable other;
  EXPECT_FALSE(blocks.allocate(other, table, 16));
  EXPECT_TRUE(other.empty());
  EXPECT_EQ(blocks.ref_count(0), 1);
  EXPECT_FALSE(blocks.allocate(other, {}, 1, 2)) << "one block is taken, two are to be left, two are free";
  EXPECT_TRUE(other.empty());
  EXPECT_TRUE(blocks.allocate(other, {}, 1, 1));
  EXPECT_EQ(other, (Ids{1}));
}

TEST(Task3_3_BlockManager, LeavesTheOtherBlocksFreeAlsoWhereNoneIsTaken) {
  BlockManager blocks(3, 4);
  BlockTable parent, child;
  ASSERT_TRUE(blocks.append(parent, 8));
  EXPECT_FALSE(blocks.allocate(child, parent, 8, 2)) << "both blocks are shared, and one is free";
  EXPECT_TRUE(child.empty());
  EXPECT_TRUE(blocks.allocate(child, parent, 8, 1));
}

TEST(Task3_3_BlockManager, RefusesToStartATableThatIsNotEmpty) {
  BlockManager blocks(4, 4);
  BlockTable table;
  ASSERT_TRUE(blocks.append(table, 4));
  EXPECT_THROW(blocks.allocate(table, {}, 8), Error);
}

TEST(Task3_3_BlockManager, SharesFullBlocksOfACommonPrefix) {
  BlockManager blocks(8, 4);
  BlockTable parent, child;
  ASSERT_TRUE(blocks.append(parent, 10));  // two full blocks and a partial one
  ASSERT_TRUE(blocks.allocate(child, std::span(parent).first(2), 10));
  EXPECT_EQ(child, (Ids{0, 1, 3}));
  EXPECT_EQ(blocks.ref_count(0), 2);
  EXPECT_EQ(blocks.ref_count(1), 2);
  EXPECT_EQ(blocks.ref_count(2), 1);
  EXPECT_EQ(blocks.num_used_blocks(), 4) << "a shared block is used once";
  blocks.free(parent);
  EXPECT_EQ(blocks.ref_count(0), 1);
  EXPECT_EQ(blocks.num_used_blocks(), 3) << "the child keeps what it shares";
  blocks.free(child);
  EXPECT_EQ(blocks.num_free_blocks(), 8);
}

TEST(Task3_3_BlockManager, BlocksWithoutContentAreTakenAgainFirst) {
  BlockManager blocks(5, 4);
  BlockTable table;
  ASSERT_TRUE(blocks.append(table, 12));
  blocks.free(table);
  EXPECT_TRUE(table.empty());
  EXPECT_EQ(blocks.pool().free_ids(), (Ids{0, 1, 2, 3, 4}));
  ASSERT_TRUE(blocks.append(table, 4));
  EXPECT_EQ(table, (Ids{0}));
}

TEST(Task3_3_BlockManager, NoticesABlockThatIsGivenBackTwice) {
  BlockManager blocks(2, 4);
  BlockTable table;
  ASSERT_TRUE(blocks.append(table, 4));
  BlockTable copy = table;
  blocks.free(table);
  EXPECT_THROW(blocks.free(copy), Error);
}

TEST(Task3_3_BlockManager, NoticesABlockThatStandsTwiceInTheTableOfItsOnlyHolder) {
  BlockManager blocks(2, 4);
  BlockTable table;
  ASSERT_TRUE(blocks.append(table, 4));
  table.push_back(table[0]);
  EXPECT_THROW(blocks.free(table), Error) << "one reference, two entries";
}

TEST(Task3_3_BlockManager, NamesTheBlockThatIsGivenBackTwice) {
  BlockManager blocks(40, 4);
  BlockTable table;
  ASSERT_TRUE(blocks.append(table, 160));
  blocks.free(table);
  BlockTable again = {37};
  try {
    blocks.free(again);
    ADD_FAILURE() << "no Error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("37"));
  }
}

// An index that knows only which blocks it was given: what task 3.3 needs to know of one.
class ListedBlocks final : public PrefixIndex {
 public:
  explicit ListedBlocks(Ids ids) : ids_(std::move(ids)) {}
  void match(PrefixKey&, const TokenView&, int64_t, std::vector<int32_t>&) override {}
  void insert(PrefixKey&, const TokenView&, std::span<const int32_t>, int64_t) override {}
  void erase(int32_t block_id) override { std::erase(ids_, block_id); }
  bool contains(int32_t block_id) const override {
    return std::find(ids_.begin(), ids_.end(), block_id) != ids_.end();
  }
  int64_t size() const override { return std::ssize(ids_); }

 private:
  Ids ids_;
};

TEST(Task3_3_BlockManager, CachedBlocksAreGivenBackToTheBackTheLastOfATableFirst) {
  BlockTable table;
  BlockManager cached(6, 4, std::make_unique<ListedBlocks>(Ids{4, 5}));
  ASSERT_TRUE(cached.append(table, 16));
  BlockTable hit;
  ASSERT_TRUE(cached.allocate(hit, Ids{4, 5}, 8));
  cached.free(table);
  EXPECT_EQ(cached.pool().free_ids(), (Ids{0, 1, 2, 3}));
  cached.free(hit);
  EXPECT_EQ(cached.pool().free_ids(), (Ids{0, 1, 2, 3, 5, 4}));
}

TEST(Task3_3_BlockManager, ABlockThatIsTakenToBeOverwrittenLeavesTheIndex) {
  BlockManager blocks(3, 4, std::make_unique<ListedBlocks>(Ids{0, 1, 2}));
  BlockTable table;
  ASSERT_TRUE(blocks.append(table, 8));
  EXPECT_FALSE(blocks.is_cached(0));
  EXPECT_FALSE(blocks.is_cached(1));
  EXPECT_TRUE(blocks.is_cached(2)) << "it was not taken";
  EXPECT_EQ(blocks.num_cached_blocks(), 1);
}

TEST(Task3_3_BlockManager, ASharedBlockThatNobodyHoldsCountsAsTaken) {
  BlockManager blocks(3, 4, std::make_unique<ListedBlocks>(Ids{1, 2}));
  BlockTable table;
  EXPECT_FALSE(blocks.allocate(table, Ids{1, 2}, 16)) << "two revived and two new blocks, three are free";
  EXPECT_TRUE(table.empty());
  EXPECT_EQ(blocks.pool().free_ids(), (Ids{0, 1, 2}));
  EXPECT_FALSE(blocks.allocate(table, Ids{1, 2}, 12, 1)) << "none would be left free";
  ASSERT_TRUE(blocks.allocate(table, Ids{1, 2}, 12));
  EXPECT_EQ(table, (Ids{1, 2, 0}));
  EXPECT_TRUE(blocks.is_cached(1)) << "a hit overwrites nothing";
  EXPECT_EQ(blocks.ref_count(1), 1);
  EXPECT_EQ(blocks.num_free_blocks(), 0);
}

TEST(Task3_3_BlockManager, ASharedBlockIsNotTakenToBeOverwritten) {
  BlockManager blocks(4, 4, std::make_unique<ListedBlocks>(Ids{0, 1}));
  BlockTable table;
  ASSERT_TRUE(blocks.allocate(table, Ids{0, 1}, 16));
  EXPECT_EQ(table, (Ids{0, 1, 2, 3})) << "0 and 1 stood at the front of the free list";
  EXPECT_EQ(blocks.ref_count(0), 1);
  EXPECT_TRUE(blocks.is_cached(0));
}

TEST(Task3_3_BlockManager, SharedBlocksBeyondTheRoomAskedForAreTakenToo) {
  BlockManager blocks(4, 4, std::make_unique<ListedBlocks>(Ids{0, 1, 2}));
  BlockTable table;
  EXPECT_FALSE(blocks.allocate(table, Ids{0, 1, 2}, 4, 2)) << "three revived blocks leave one of four free";
  EXPECT_TRUE(table.empty());
  ASSERT_TRUE(blocks.allocate(table, Ids{0, 1, 2}, 4, 1));
  EXPECT_EQ(table, (Ids{0, 1, 2}));
}

TEST(Task3_3_BlockManager, EvictsNothingWhenTheRoomIsTooSmall) {
  BlockManager blocks(3, 4, std::make_unique<ListedBlocks>(Ids{1, 2}));
  BlockTable table;
  ASSERT_TRUE(blocks.append(table, 4));
  EXPECT_FALSE(blocks.append(table, 17));
  EXPECT_TRUE(blocks.is_cached(1));
  EXPECT_TRUE(blocks.is_cached(2));
  EXPECT_EQ(blocks.pool().free_ids(), (Ids{1, 2}));
}

TEST(Task3_3_BlockManager, RefusesSizesThatMakeNoSense) {
  EXPECT_THROW(BlockManager(0, 16), Error);
  EXPECT_THROW(BlockManager(4, 0), Error);
}

}  // namespace
}  // namespace ladder

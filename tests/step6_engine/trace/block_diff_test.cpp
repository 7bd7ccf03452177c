// Task 6.10: what changed in the block table.
#include "step6_engine/trace/block_diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "step3_sequence/prefix/hash_prefix_index.h"

namespace ladder {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kBlockSize = 4;

BlockManager make_blocks(int64_t num_blocks) {
  return BlockManager(
      num_blocks, kBlockSize,
      std::make_unique<HashPrefixIndex>(num_blocks, kBlockSize, std::make_unique<Sha256BlockHasher>(7)));
}

// A sequence of these tokens: its table, indexed as far as it is computed.
struct Holder {
  std::vector<int32_t> tokens;
  BlockTable table;
  PrefixKey key;

  explicit Holder(std::vector<int32_t> ids) : tokens(std::move(ids)) {
    key.num_prompt_tokens = std::ssize(tokens);
  }
  bool begin(BlockManager& blocks) {
    BlockTable shared;
    blocks.find_prefix(key, TokenView(tokens), shared);
    return blocks.allocate(table, shared, std::ssize(tokens));
  }
  void computed(BlockManager& blocks) { blocks.cache(key, TokenView(tokens), table, std::ssize(tokens)); }
};

// What a block is, by definition.
BlockState state_of(const BlockManager& blocks, int64_t id) {
  const int64_t count = blocks.ref_count(static_cast<int32_t>(id));
  if (count > 1) return BlockState::shared;
  if (count == 1) return BlockState::held;
  return blocks.is_cached(static_cast<int32_t>(id)) ? BlockState::cached : BlockState::free;
}

// A sequence of eight ones has ended: its blocks, 0 and 1, are cached, and that was told.
struct CachedTable {
  BlockManager blocks;
  BlockDiff diff;

  explicit CachedTable(int64_t num_blocks) : blocks(make_blocks(num_blocks)), diff(num_blocks) {
    Holder ended(std::vector<int32_t>(8, 1));
    EXPECT_TRUE(ended.begin(blocks));
    ended.computed(blocks);
    blocks.free(ended.table);
    diff.look(blocks);
    diff.take();
  }
};

TEST(Task6_10_BlockDiff, OfAnUntouchedTableIsEmpty) {
  const BlockManager blocks = make_blocks(8);
  BlockDiff diff(8);
  diff.look(blocks);
  EXPECT_TRUE(diff.take().empty());
}

TEST(Task6_10_BlockDiff, TellsNeighboursOfOneStateAsOneRun) {
  BlockManager blocks = make_blocks(8);
  BlockDiff diff(8);
  Holder a(std::vector<int32_t>(12, 1));
  ASSERT_TRUE(a.begin(blocks));
  diff.look(blocks);
  EXPECT_THAT(diff.take().runs, ElementsAre(BlockRun{{0, 3}, BlockState::held}));
  a.computed(blocks);
  blocks.free(a.table);
  diff.look(blocks);
  EXPECT_THAT(diff.take().runs, ElementsAre(BlockRun{{0, 3}, BlockState::cached}));
}

TEST(Task6_10_BlockDiff, TellsNothingTwice) {
  BlockManager blocks = make_blocks(8);
  BlockDiff diff(8);
  Holder a(std::vector<int32_t>(5, 1));
  ASSERT_TRUE(a.begin(blocks));
  diff.look(blocks);
  diff.take();
  diff.look(blocks);
  EXPECT_TRUE(diff.take().empty());
}

TEST(Task6_10_BlockDiff, RunsOfDifferentStatesAndWithGapsAreApart) {
  BlockManager blocks = make_blocks(8);
  Holder a(std::vector<int32_t>(8, 1)), b(std::vector<int32_t>(4, 2)), c(std::vector<int32_t>(4, 3));
  for (Holder* holder : {&a, &b, &c}) ASSERT_TRUE(holder->begin(blocks));  // 0 1 | 2 | 3
  a.computed(blocks);
  Holder d({1, 1, 1, 1, 1, 1, 1, 1, 9});  // shares 0 and 1, and takes 4
  ASSERT_TRUE(d.begin(blocks));
  blocks.free(b.table);  // 2
  BlockDiff diff(8);
  diff.look(blocks);
  EXPECT_THAT(diff.take().runs,
              ElementsAre(BlockRun{{0, 2}, BlockState::shared}, BlockRun{{3, 2}, BlockState::held}));
}

TEST(Task6_10_BlockDiff, AnEvictionIsTold) {
  CachedTable table(2);
  auto& [blocks, diff] = table;
  Holder b(std::vector<int32_t>(8, 2));
  ASSERT_TRUE(b.begin(blocks));
  diff.look(blocks);
  b.computed(blocks);  // indexed again, with other content, before it is told
  diff.look(blocks);
  const BlockChanges changes = diff.take();
  EXPECT_THAT(changes.evicted, ElementsAre(BlockRange{0, 2}));
  EXPECT_THAT(changes.runs, ElementsAre(BlockRun{{0, 2}, BlockState::held}));
  diff.look(blocks);
  EXPECT_THAT(diff.take().evicted, IsEmpty()) << "told already";
}

TEST(Task6_10_BlockDiff, ARevivedBlockIsNotEvicted) {
  CachedTable table(4);
  auto& [blocks, diff] = table;
  Holder b({1, 1, 1, 1, 1, 1, 1, 1, 2});
  ASSERT_TRUE(b.begin(blocks));
  diff.look(blocks);
  EXPECT_THAT(diff.take().evicted, IsEmpty());
}

TEST(Task6_10_BlockDiff, AnEvictedBlockThatIsFreeAgainHasAnEvictionAndARun) {
  CachedTable table(2);
  auto& [blocks, diff] = table;
  Holder b(std::vector<int32_t>(8, 2));
  ASSERT_TRUE(b.begin(blocks));
  blocks.free(b.table);  // never computed
  diff.look(blocks);
  const BlockChanges changes = diff.take();
  EXPECT_THAT(changes.evicted, ElementsAre(BlockRange{0, 2}));
  EXPECT_THAT(changes.runs, ElementsAre(BlockRun{{0, 2}, BlockState::free}));
}

TEST(Task6_10_BlockDiff, ChangedAndChangedBackIsNoRun) {
  BlockManager blocks = make_blocks(4);
  BlockDiff diff(4);
  Holder a(std::vector<int32_t>(8, 1));
  ASSERT_TRUE(a.begin(blocks));
  diff.look(blocks);
  blocks.free(a.table);
  diff.look(blocks);
  EXPECT_TRUE(diff.take().empty());
}

TEST(Task6_10_BlockDiff, TakeAllIsTheWholeTable) {
  BlockManager blocks = make_blocks(6);
  BlockDiff diff(6);
  Holder a(std::vector<int32_t>(8, 1)), b(std::vector<int32_t>(4, 2));
  ASSERT_TRUE(a.begin(blocks));
  ASSERT_TRUE(b.begin(blocks));
  b.computed(blocks);
  blocks.free(b.table);
  diff.look(blocks);
  diff.take();
  const BlockChanges all = diff.take_all();
  EXPECT_THAT(all.runs,
              ElementsAre(BlockRun{{0, 2}, BlockState::held}, BlockRun{{2, 1}, BlockState::cached}));
  EXPECT_THAT(all.evicted, IsEmpty());
  EXPECT_TRUE(diff.take().empty());
}

TEST(Task6_10_BlockDiff, RunsAreAppliedInPlace) {
  std::vector<BlockState> states(6, BlockState::held);
  apply_runs(std::vector<BlockRun>{{{1, 2}, BlockState::shared}, {{5, 1}, BlockState::free}}, states);
  using enum BlockState;
  EXPECT_THAT(states, ElementsAre(held, shared, shared, held, held, BlockState::free));
}

TEST(Task6_10_BlockDiff, AThousandRandomChangesLeadToTheTableAsItIs) {
  constexpr int64_t kBlocks = 23;
  std::mt19937 random(5);
  BlockManager blocks = make_blocks(kBlocks);
  BlockDiff diff(kBlocks);
  std::vector<BlockState> viewer(kBlocks, BlockState::free);
  std::vector<bool> indexed(kBlocks, false), lost(kBlocks, false);
  std::vector<Holder> holders;
  const auto note_lost = [&] {
    for (int64_t id = 0; id < kBlocks; ++id) {
      const bool now = blocks.is_cached(static_cast<int32_t>(id));
      if (indexed[static_cast<size_t>(id)] && !now) lost[static_cast<size_t>(id)] = true;
      indexed[static_cast<size_t>(id)] = now;
    }
  };
  for (int turn = 0; turn < 1000; ++turn) {
    SCOPED_TRACE("turn " + std::to_string(turn));
    for (int change = static_cast<int>(random() % 4); change > 0; --change) {
      if (holders.empty() || random() % 2 == 0) {
        Holder holder(std::vector<int32_t>(1 + random() % 17, static_cast<int32_t>(random() % 3)));
        if (holder.begin(blocks)) holders.push_back(std::move(holder));
      } else {
        const size_t at = random() % holders.size();
        if (random() % 2 == 0) holders[at].computed(blocks);
        diff.look(blocks);
        note_lost();
        blocks.free(holders[at].table);
        holders.erase(holders.begin() + static_cast<std::ptrdiff_t>(at));
      }
      diff.look(blocks);
      note_lost();
    }
    diff.look(blocks);
    const BlockChanges changes = diff.take();
    for (size_t i = 1; i < changes.runs.size(); ++i) {
      const BlockRun &left = changes.runs[i - 1], &right = changes.runs[i];
      const int64_t end = left.blocks.first + left.blocks.count;
      EXPECT_LE(end, right.blocks.first) << "runs are not in order";
      EXPECT_FALSE(end == right.blocks.first && left.state == right.state) << "two runs could be one";
    }
    apply_runs(changes.runs, viewer);
    for (int64_t id = 0; id < kBlocks; ++id)
      EXPECT_EQ(viewer[static_cast<size_t>(id)], state_of(blocks, id)) << "block " << id;
    std::vector<bool> evicted(kBlocks, false);
    for (const BlockRange& range : changes.evicted)
      for (int64_t i = 0; i < range.count; ++i) evicted[static_cast<size_t>(range.first + i)] = true;
    EXPECT_EQ(evicted, lost);
    lost.assign(kBlocks, false);
  }
}

}  // namespace
}  // namespace ladder

// Task 6.10: random days of a block table, told in runs, against a table that is looked at block by block.
#include "step6_engine/trace/block_diff.h"

#include <gtest/gtest.h>

#include "step3_sequence/prefix/hash_prefix_index.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::Random;

struct Sequence {
  std::vector<int32_t> tokens;
  BlockTable table;
  PrefixKey key;
};

BlockState state_of(const BlockManager& blocks, int32_t id) {
  if (blocks.ref_count(id) > 1) return BlockState::shared;
  if (blocks.ref_count(id) == 1) return BlockState::held;
  return blocks.is_cached(id) ? BlockState::cached : BlockState::free;
}

// Ranges of neighbours for which `is` holds, as long as they can be; `same` says which neighbours go together.
template <class Is, class Same>
std::vector<BlockRange> ranges_of(int64_t num_blocks, Is is, Same same) {
  std::vector<BlockRange> ranges;
  for (int64_t id = 0; id < num_blocks; ++id) {
    if (!is(id)) continue;
    if (!ranges.empty() && ranges.back().first + ranges.back().count == id && same(id - 1, id))
      ++ranges.back().count;
    else
      ranges.push_back({id, 1});
  }
  return ranges;
}

class Day {
 public:
  Day(Random& random, int64_t num_blocks, int64_t block_size)
      : random_(random),
        num_blocks_(num_blocks),
        block_size_(block_size),
        blocks_(num_blocks, block_size,
                std::make_unique<HashPrefixIndex>(
                    num_blocks, block_size, std::make_unique<Sha256BlockHasher>(random.integer(0, 99)))),
        diff_(num_blocks),
        told_(static_cast<size_t>(num_blocks), BlockState::free),
        viewer_(told_),
        indexed_(told_.size(), false),
        evicted_(told_.size(), false) {}

  void live(int num_turns) {
    for (int turn = 0; turn < num_turns; ++turn) {
      SCOPED_TRACE("turn " + std::to_string(turn));
      for (int64_t i = random_.integer(0, 5); i > 0; --i) change();
      if (random_.integer(0, 5) > 0) take();
      if (random_.integer(0, 20) == 0) restart();
      if (::testing::Test::HasFatalFailure()) return;
    }
  }

 private:
  // Between two looks blocks are taken or given back, or get an index; never both.
  void change() {
    const int64_t kind = random_.integer(0, 4);
    if (kind <= 1 || alive_.empty()) {
      Sequence added;
      const auto token = static_cast<int32_t>(random_.integer(0, 3));
      added.tokens.assign(static_cast<size_t>(random_.integer(1, block_size_ * num_blocks_ / 3 + 1)), token);
      added.key.num_prompt_tokens = std::ssize(added.tokens);
      BlockTable shared;
      blocks_.find_prefix(added.key, TokenView(added.tokens), shared);
      if (blocks_.allocate(added.table, shared, std::ssize(added.tokens))) alive_.push_back(std::move(added));
    } else {
      const auto at = static_cast<size_t>(random_.integer(0, std::ssize(alive_) - 1));
      if (kind == 2) {
        blocks_.cache(alive_[at].key, TokenView(alive_[at].tokens), alive_[at].table,
                      std::ssize(alive_[at].tokens));
      } else {
        blocks_.free(alive_[at].table);
        alive_.erase(alive_.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    look();
  }

  void look() {
    diff_.look(blocks_);
    for (int32_t id = 0; id < num_blocks_; ++id) {
      const auto i = static_cast<size_t>(id);
      if (indexed_[i] && !blocks_.is_cached(id)) evicted_[i] = true;
      indexed_[i] = blocks_.is_cached(id);
    }
  }

  BlockState now(int64_t id) const { return state_of(blocks_, static_cast<int32_t>(id)); }

  // `changes` against what was told: the same blocks, and no more runs than it takes.
  void expect_told(const BlockChanges& changes) {
    const std::vector<BlockRange> expected = ranges_of(
        num_blocks_, [&](int64_t id) { return told_[static_cast<size_t>(id)] != now(id); },
        [&](int64_t left, int64_t right) { return now(left) == now(right); });
    ASSERT_EQ(changes.runs.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(changes.runs[i].blocks, expected[i]) << "run " << i;
      EXPECT_EQ(changes.runs[i].state, now(expected[i].first)) << "run " << i;
    }
    EXPECT_EQ(changes.evicted, ranges_of(
                                   num_blocks_, [&](int64_t id) { return evicted_[static_cast<size_t>(id)]; },
                                   [](int64_t, int64_t) { return true; }));
    apply_runs(changes.runs, viewer_);
    for (int64_t id = 0; id < num_blocks_; ++id) {
      EXPECT_EQ(viewer_[static_cast<size_t>(id)], now(id)) << "block " << id;
      told_[static_cast<size_t>(id)] = now(id);
    }
    evicted_.assign(told_.size(), false);
  }

  void take() {
    look();
    const BlockChanges changes = diff_.take();
    expect_told(changes);
  }

  // For a viewer that knows nothing: its table is empty, and nothing was evicted.
  void restart() {
    look();
    told_.assign(told_.size(), BlockState::free);
    viewer_ = told_;
    evicted_.assign(told_.size(), false);
    const BlockChanges changes = diff_.take_all();
    expect_told(changes);
  }

  Random& random_;
  const int64_t num_blocks_, block_size_;
  BlockManager blocks_;
  BlockDiff diff_;
  std::vector<Sequence> alive_;
  std::vector<BlockState> told_, viewer_;
  std::vector<bool> indexed_, evicted_;
};

TEST(Hidden6_10_BlockDiff, RandomDaysOfTablesOfAnySize) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 25; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Day(random, random.integer(1, 60), random.one_of<int64_t>({1, 2, 4, 16})).live(150);
    if (HasFailure()) return;
  }
}

TEST(Hidden6_10_BlockDiff, RunsAreAppliedWhereverTheyStand) {
  Random random;
  SCOPED_TRACE(random.describe());
  using enum BlockState;
  for (int round = 0; round < 200; ++round) {
    const int64_t size = random.integer(1, 100);
    std::vector<BlockState> states(static_cast<size_t>(size));
    for (BlockState& state : states)
      state = random.one_of<BlockState>({BlockState::free, cached, held, shared});
    std::vector<BlockState> expected = states;
    std::vector<BlockRun> runs;
    for (int64_t at = random.integer(0, 5); at < size; at += random.integer(0, 5)) {
      const int64_t count = random.integer(1, size - at);
      runs.push_back({{at, count}, random.one_of<BlockState>({BlockState::free, cached, held, shared})});
      for (; at < runs.back().blocks.first + count; ++at)
        expected[static_cast<size_t>(at)] = runs.back().state;
    }
    apply_runs(runs, states);
    EXPECT_EQ(states, expected);
  }
}

}  // namespace
}  // namespace ladder

#pragma once
// Task 6.10: what changed in the table of KV blocks from one step to the next, small enough to be written for each step.
//
//   block        0  1  2  3  4  5  6  7
//   told last    h  h  f  f  f  c  c  f
//   now          h  s  h  h  f  f  c  f        changes: 1 -> shared; 2, 3 -> held; 5 -> free
//                                              evicted: 5 (its cached content was overwritten or forgotten)
//
// A table has up to millions of blocks and a step changes a few, mostly neighbours: so changes are runs.
#include <cstdint>
#include <span>
#include <vector>

#include "step3_sequence/block/block_manager.h"

namespace ladder {

enum class BlockState : uint8_t {
  free,    // nobody holds it, and it has no content worth keeping
  cached,  // nobody holds it; a prefix hit revives it, need overwrites it
  held,    // one table holds it
  shared,  // several do
};

// Blocks first .. first + count - 1.
struct BlockRange {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const BlockRange&) const = default;
};

struct BlockRun {
  BlockRange blocks;
  BlockState state = BlockState::free;  // that they have now
  bool operator==(const BlockRun&) const = default;
};

struct BlockChanges {
  std::vector<BlockRun> runs;       // ascending, and as long as they can be: no two could be one
  std::vector<BlockRange> evicted;  // likewise
  bool empty() const { return runs.empty() && evicted.empty(); }
};

class BlockDiff {
 public:
  explicit BlockDiff(int64_t num_blocks);  // all are free, and so they were told

  // Sees the blocks as they are. Between two looks a block may lose its cached content or get some, not both, or its
  // eviction is overlooked: so look when a step is planned (blocks are taken) and when its answer was applied
  // (blocks are indexed).
  void look(const BlockManager& blocks);

  // What is different from what was told last, and which blocks were evicted in any look since. What was seen counts
  // as told then. A block that changed and changed back has no run.
  BlockChanges take();
  // The same as if all had been told to be free and none was evicted: the whole table.
  BlockChanges take_all();

 private:
  struct Seen {
    BlockState told = BlockState::free;
    BlockState now = BlockState::free;
    bool indexed = false;  // by the prefix cache, held or not
    bool evicted = false;  // since the last take
  };
  std::vector<Seen> blocks_;
};

// The other way: a table of states to which the runs are applied. They must lie within it.
void apply_runs(std::span<const BlockRun> runs, std::vector<BlockState>& states);

}  // namespace ladder

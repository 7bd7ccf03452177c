// The simple version:
//
//   look():  now = [state(block) for block in blocks];  evicted |= {block indexed before and not indexed now}
//   take():  changes = {block: now[block] for block where told[block] != now[block]};  told = now
//
// What the rest buys: neighbours with the same new state become one run, and what a table of a million blocks costs to
// look at is a few bytes of each.
#include "step6_engine/trace/block_diff.h"

#include <algorithm>

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

BlockDiff::BlockDiff(int64_t num_blocks) : blocks_(static_cast<size_t>(num_blocks)) {}

// >>> task 6.10: what changed in the block table, as runs; and the table again from the runs
void BlockDiff::look(const BlockManager& blocks) {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    Seen& seen = blocks_[i];
    const auto id = static_cast<int32_t>(i);
    const int64_t count = blocks.ref_count(id);
    const bool indexed = blocks.is_cached(id);
    seen.evicted |= seen.indexed && !indexed;
    seen.indexed = indexed;
    seen.now = count > 1    ? BlockState::shared
               : count == 1 ? BlockState::held
               : indexed    ? BlockState::cached
                            : BlockState::free;
  }
}

BlockChanges BlockDiff::take() {
  BlockChanges changes;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    Seen& seen = blocks_[i];
    const auto id = static_cast<int64_t>(i);
    if (seen.now != seen.told) {
      std::vector<BlockRun>& runs = changes.runs;
      const bool goes_on = !runs.empty() && runs.back().state == seen.now &&
                           runs.back().blocks.first + runs.back().blocks.count == id;
      if (goes_on)
        ++runs.back().blocks.count;
      else
        runs.push_back({{id, 1}, seen.now});
      seen.told = seen.now;
    }
    if (seen.evicted) {
      std::vector<BlockRange>& evicted = changes.evicted;
      if (!evicted.empty() && evicted.back().first + evicted.back().count == id)
        ++evicted.back().count;
      else
        evicted.push_back({id, 1});
      seen.evicted = false;
    }
  }
  return changes;
}

BlockChanges BlockDiff::take_all() {
  for (Seen& seen : blocks_) {
    seen.told = BlockState::free;
    seen.evicted = false;
  }
  return take();
}

void apply_runs(std::span<const BlockRun> runs, std::vector<BlockState>& states) {
  for (const BlockRun& run : runs)
    std::fill_n(states.begin() + run.blocks.first, run.blocks.count, run.state);
}
// <<< task 6.10

}  // namespace ladder

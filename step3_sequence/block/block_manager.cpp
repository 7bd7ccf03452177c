// The simple version, without sharing and without a cache of prefixes:
//
//   append(table, num_tokens):
//     missing = ceil(num_tokens / block_size) - len(table)
//     if missing > len(free): return False
//     table += [free.popleft() for _ in range(missing)]
//     return True
//   free(table):
//     free.extendleft(table); table.clear()
//
// What each further line buys: ref_count lets two tables hold one block; the count of revived blocks keeps
// allocate() all or nothing although a shared block may be free; is_cached() in free() and take_free() makes
// the free list the cache, in order of eviction.
#include "step3_sequence/block/block_manager.h"

#include <algorithm>

#include "step1_layers/core/error.h"

namespace ladder {

BlockManager::BlockManager(int64_t num_blocks, int64_t block_size, std::unique_ptr<PrefixIndex> index)
    : pool_(num_blocks), block_size_(block_size), index_(std::move(index)) {
  LADDER_CHECK(block_size >= 1, "the KV block size must be at least 1, got {}", block_size);
}

// >>> task 3.3: hand out blocks, share them, take them back
bool BlockManager::append_blocks(BlockTable& table, int64_t num_tokens) {
  const int64_t missing = blocks_for(num_tokens) - std::ssize(table);
  if (missing > num_free_blocks()) return false;
  for (int64_t i = 0; i < missing; ++i) table.push_back(take_free());
  return true;
}

bool BlockManager::allocate(BlockTable& table, std::span<const int32_t> shared, int64_t num_tokens,
                            int64_t num_left_free) {
  LADDER_CHECK(table.empty(), "a block table must be empty when it is allocated");
  // A shared block that no table holds leaves the free list too, so it counts as taken.
  const int64_t revived =
      std::count_if(shared.begin(), shared.end(), [&](int32_t id) { return pool_.block(id).ref_count == 0; });
  const int64_t appended = std::max<int64_t>(0, blocks_for(num_tokens) - std::ssize(shared));
  if (revived + appended + num_left_free > num_free_blocks()) return false;

  table.reserve(blocks_for(num_tokens));
  for (const int32_t id : shared) {
    if (pool_.block(id).ref_count++ == 0) pool_.take(id);
    table.push_back(id);
  }
  return append(table, num_tokens);
}

void BlockManager::free(BlockTable& table) {
  for (auto id = table.rbegin(); id != table.rend(); ++id) {
    Block& block = pool_.block(*id);
    LADDER_CHECK(block.ref_count > 0, "KV block {} is given back twice", *id);
    if (--block.ref_count > 0) continue;
    if (is_cached(*id))
      pool_.push_back(*id);
    else
      pool_.push_front(*id);
  }
  table.clear();
}

int32_t BlockManager::take_free() {
  const int32_t id = pool_.take_front();
  if (is_cached(id)) index_->erase(id);  // evicted: it is about to be overwritten
  pool_.block(id).ref_count = 1;
  return id;
}
// <<< task 3.3

}  // namespace ladder

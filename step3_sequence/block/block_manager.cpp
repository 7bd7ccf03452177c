#include "step3_sequence/block/block_manager.h"

#include <algorithm>

#include "step1_layers/core/error.h"

namespace ladder {

BlockManager::BlockManager(int64_t num_blocks, int64_t block_size, std::unique_ptr<PrefixIndex> index)
    : free_(num_blocks), block_size_(block_size), index_(std::move(index)) {
  LADDER_CHECK(block_size >= 1, "the KV block size must be at least 1, got {}", block_size);
}

// >>> task 3.3: hand out blocks, share them, take them back
bool BlockManager::append(BlockTable& table, int64_t num_tokens) {
  const int64_t missing = blocks_for(num_tokens) - std::ssize(table);
  if (missing > num_free_blocks()) return false;
  for (int64_t i = 0; i < missing; ++i) table.push_back(take_free());
  return true;
}

bool BlockManager::allocate(BlockTable& table, std::span<const int32_t> shared, int64_t num_tokens,
                            int64_t reserve_tokens) {
  LADDER_CHECK(table.empty(), "a block table must be empty when it is allocated");
  // A shared block that nobody holds leaves the free list too, so it counts as taken.
  const int64_t revived =
      std::count_if(shared.begin(), shared.end(), [&](int32_t id) { return free_.block(id).ref_count == 0; });
  const int64_t needed = blocks_for(std::max(num_tokens, reserve_tokens)) - std::ssize(shared);
  if (needed + revived > num_free_blocks()) return false;

  for (const int32_t id : shared) {
    if (free_.block(id).ref_count++ == 0) free_.take(id);
    table.push_back(id);
  }
  return append(table, num_tokens);
}

void BlockManager::free(BlockTable& table) {
  for (auto id = table.rbegin(); id != table.rend(); ++id) {
    Block& block = free_.block(*id);
    LADDER_CHECK(block.ref_count > 0, "KV block {} is given back twice", *id);
    if (--block.ref_count > 0) continue;
    if (is_cached(*id))
      free_.push_back(*id);
    else
      free_.push_front(*id);
  }
  table.clear();
}

int32_t BlockManager::take_free() {
  const int32_t id = free_.take_front();
  if (is_cached(id)) index_->erase(id);
  free_.block(id).ref_count = 1;
  return id;
}
// <<< task 3.3

// >>> task 3.4: ask the prefix index, and tell it what is computed
void BlockManager::find_prefix(PrefixKey& key, std::span<const int32_t> token_ids, BlockTable& blocks) {
  blocks.clear();
  if (index_) index_->match(key, token_ids, (std::ssize(token_ids) - 1) / block_size_, blocks);
}

void BlockManager::cache(PrefixKey& key, std::span<const int32_t> token_ids, const BlockTable& table,
                         int64_t num_computed_tokens) {
  if (!index_) return;
  const int64_t num_full_blocks = num_computed_tokens / block_size_;
  if (num_full_blocks > key.num_indexed_blocks) index_->insert(key, token_ids, table, num_full_blocks);
}
// <<< task 3.4

}  // namespace ladder

// Task 3.4, the block manager's side of it: when the prefix index is asked, and when it learns something.
//
//   find_prefix(tokens):  the blocks of the longest prefix in the index, but never of all tokens
//   cache(tokens, table): every full block that is computed goes into the index, once
//
// The third of its calls, erase(), stands in block_manager.cpp where a block is taken to be overwritten.
#include "step3_sequence/block/block_manager.h"

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

// >>> task 3.4: ask the prefix index, and give it what is computed
void BlockManager::find_prefix(PrefixKey& key, const TokenView& tokens, BlockTable& blocks) {
  blocks.clear();
  if (index_) index_->match(key, tokens, (tokens.size() - 1) / block_size_, blocks);
}

void BlockManager::cache(PrefixKey& key, const TokenView& tokens, const BlockTable& table,
                         int64_t num_computed_tokens) {
  if (!index_) return;
  const int64_t num_full_blocks = num_computed_tokens / block_size_;
  if (num_full_blocks > key.num_indexed_blocks) index_->insert(key, tokens, table, num_full_blocks);
}
// <<< task 3.4

bool BlockManager::reset_prefix_cache() {
  if (num_used_blocks() > 0) return false;
  for (int32_t id = 0; id < num_blocks(); ++id)
    if (is_cached(id)) index_->erase(id);
  return true;
}

}  // namespace ladder

#pragma once
// Task 3.3: who holds which KV block (PagedAttention: Kwon et al., 2023, arXiv 2309.06180).
//
//   free, empty      in the free list, no content worth keeping
//   free, cached     in the free list, and still in the prefix index: a hit revives it, need overwrites it
//   held             ref_count entries of block tables hold it, cached or not
//
// Free and held blocks always add up to all of them. A table holds one reference for each of its entries. This
// class alone counts them: a block's ref_count is 1 when it is taken to be written, one more for each further
// table that shares it, one less for each table that gives it back; and it is in the free list exactly while
// its ref_count is 0, which nobody else sees to.
//
// A prefix index knows which blocks hold the keys and values of which token prefix (task 3.4; for this file
// it is enough that a block is in it or not, and leaves it when it is overwritten). Blocks are taken from the
// front of the free list. Those that are not in the index are given back to the front, to be taken again at
// once; cached ones to the back, the last block of a table first. So the list is in order of least recent
// use, and of one prefix the tail is evicted before the root that more prompts share.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "step3_sequence/block/block_pool.h"
#include "step3_sequence/prefix/prefix_index.h"

namespace ladder {

using BlockTable = std::vector<int32_t>;

class BlockManager {
 public:
  // `index` null: no prefix caching. Error: num_blocks or block_size below 1.
  BlockManager(int64_t num_blocks, int64_t block_size, std::unique_ptr<PrefixIndex> index = nullptr);

  int64_t num_blocks() const { return pool_.num_blocks(); }
  int64_t block_size() const { return block_size_; }
  int64_t num_free_blocks() const { return pool_.num_free(); }
  int64_t num_used_blocks() const { return num_blocks() - num_free_blocks(); }
  int64_t num_cached_blocks() const { return index_ ? index_->size() : 0; }
  int64_t blocks_for(int64_t num_tokens) const { return (num_tokens + block_size_ - 1) / block_size_; }

  // Lengthens the table until it has room for `num_tokens`. All or nothing: false, and nothing changed, if
  // there are too few free blocks. Most calls of a decode need no block, so that answer stays inline.
  bool append(BlockTable& table, int64_t num_tokens) {
    return num_tokens <= std::ssize(table) * block_size_ || append_blocks(table, num_tokens);
  }

  // Starts a table, which must be empty (else Error), with `shared` (a prefix hit, or the first blocks of a
  // sibling's table; all of them, also where num_tokens needs fewer) and appends to it until it has room for
  // `num_tokens`. All or nothing, as append; a block of `shared` may be free, and is then taken out of the free
  // ones too. `num_left_free`: false also if fewer blocks than that would be left free, even if none is taken.
  bool allocate(BlockTable& table, std::span<const int32_t> shared, int64_t num_tokens,
                int64_t num_left_free = 0);

  // Gives up the table's references, from its last block to its first, and empties it. Who gives up the last
  // one of a block puts it into the free list. Error, naming the block: no table holds it, it was given back
  // twice. That is a defect of the caller: nothing is promised of the table and the counts after it.
  void free(BlockTable& table);

  // Task 3.4, in block/prefix_caching.cpp.

  // Replaces `blocks` by those of the longest cached prefix of these tokens (none without an index). Full blocks
  // only, and never all tokens: the logits after the last one can only come from computing it. Nothing is held
  // until allocate().
  void find_prefix(PrefixKey& key, const TokenView& tokens, BlockTable& blocks);

  // The first `num_computed_tokens` tokens, at most all of them, have their K and V in the table's blocks: indexes
  // the full ones. Nothing changes if the key counts as many already, or more.
  void cache(PrefixKey& key, const TokenView& tokens, const BlockTable& table, int64_t num_computed_tokens);

  // Forgets all cached prefixes. False, and nothing changed, while a block is held: what its sequence computes
  // next would be indexed as a continuation of what was forgotten.
  bool reset_prefix_cache();

  int64_t ref_count(int32_t block_id) const { return pool_.block(block_id).ref_count; }
  bool is_cached(int32_t block_id) const { return index_ && index_->contains(block_id); }
  const BlockPool& pool() const { return pool_; }

 private:
  bool append_blocks(BlockTable& table, int64_t num_tokens);  // append() where the table is too short
  // The next free block, to be overwritten: out of the index, with one reference. One must be free.
  int32_t take_free();

  BlockPool pool_;
  int64_t block_size_ = 0;
  std::unique_ptr<PrefixIndex> index_;
};

}  // namespace ladder

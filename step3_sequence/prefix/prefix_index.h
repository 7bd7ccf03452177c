#pragma once
// Task 3.4: the seam between the block manager and whatever finds cached prefixes.
//
// An index knows which blocks hold the keys and values of which token prefix. It neither counts references
// nor decides what to evict: the block manager does, and tells the index when a block's content is gone.
// Only full blocks are indexed. The first implementation is HashPrefixIndex (chained block hashes, as vLLM);
// a radix tree (SGLang: Zheng et al., 2023, arXiv 2312.07104) fits behind the same four functions.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "step3_sequence/prefix/block_hash.h"

namespace ladder {

// What an index remembers about one sequence between calls, so that no block is hashed twice. The sequence
// owns it and sets salt and adapter; the rest is the index's.
struct PrefixKey {
  int64_t num_indexed_blocks = 0;       // leading blocks of the sequence's table that are in the index
  uint64_t last_entry = 0;              // the entry of the last of them
  std::vector<BlockHash> block_hashes;  // the root's, then those of the first full blocks, as far as needed
  std::string salt;                     // only equal salts share blocks
  std::string adapter;                  // keys and values depend on the adapter too

  // The table was given up, or filled from elsewhere than a match.
  void forget_table() { num_indexed_blocks = 0, last_entry = 0; }
};

class PrefixIndex {
 public:
  virtual ~PrefixIndex() = default;

  // Replaces `block_ids` by the blocks of the longest indexed prefix of `token_ids`, at most `max_blocks`.
  virtual void match(PrefixKey& key, std::span<const int32_t> token_ids, int64_t max_blocks,
                     std::vector<int32_t>& block_ids) = 0;

  // The first `num_full_blocks` blocks of `block_table`, which are held, hold the prefix of `token_ids`.
  // Content that other blocks hold already gets one more block: a table is never rewritten, and nothing is
  // freed.
  virtual void insert(PrefixKey& key, std::span<const int32_t> token_ids,
                      std::span<const int32_t> block_table, int64_t num_full_blocks) = 0;

  // The block is about to be overwritten.
  virtual void erase(int32_t block_id) = 0;

  virtual bool contains(int32_t block_id) const = 0;
  virtual int64_t size() const = 0;  // indexed blocks
};

}  // namespace ladder

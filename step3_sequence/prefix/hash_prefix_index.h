#pragma once
// Task 3.4: the prefix index of chained block hashes (vLLM: BlockHashToBlockMap in
// vllm/v1/core/block_pool.py).
//
// A hash table from block hash to block number, open addressing, so that a look-up is one or two cache lines
// and nothing is allocated. An equal hash is not believed: a hit also needs the same tokens after the same
// parent. Content is numbered when it is first indexed, and a block's parent is such a number, an entry; the
// parent of a first block is its salt and adapter, letter for letter. A hit is therefore right by comparison
// alone, whatever the hash function does; the hash only says where to look.
//
// Two sequences that compute the same block at the same time both keep theirs: two blocks of one entry. All
// full blocks of a sequence are thus indexed, and a block is never the only way to a block that outlives it:
// who holds a block holds one for each entry before it, and gives it back before those.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "step3_sequence/prefix/prefix_index.h"

namespace ladder {

class HashPrefixIndex final : public PrefixIndex {
 public:
  HashPrefixIndex(int64_t num_blocks, int64_t block_size, std::unique_ptr<BlockHasher> hasher);

  void match(PrefixKey& key, const TokenView& tokens, int64_t max_blocks,
             std::vector<int32_t>& block_ids) override;
  void insert(PrefixKey& key, const TokenView& tokens, std::span<const int32_t> block_table,
              int64_t num_full_blocks) override;
  void erase(int32_t block_id) override;
  bool contains(int32_t block_id) const override { return blocks_[block_id].entry != 0; }
  int64_t size() const override { return size_; }

 private:
  struct Domain {
    std::string salt, adapter;
  };
  struct IndexedBlock {  // a cache line
    BlockHash hash;
    uint64_t entry = 0;              // number of its content; 0: not indexed
    uint64_t parent_entry = 0;       // 0: a first block ...
    std::unique_ptr<Domain> domain;  // ... of this salt and adapter; null: of none
  };
  struct Slot {
    int32_t block_id = -1;  // -1: empty
    uint32_t tag = 0;       // 32 bits of the hash: another block's slot is passed over without looking at it
  };

  // The name of full block `index` of the tokens. The key keeps names: prompt_hashes has the root's first, then
  // those of the full blocks of the prompt, own_hashes those of the blocks after these. What is missing up to
  // `index` is computed, each from the one before, and nothing beyond; one that is kept is there at once, however
  // long the prompt is.
  const BlockHash& hash_of(PrefixKey& key, const TokenView& tokens, int64_t index);
  // A block of this name, with these tokens, after this parent, and where that is 0 of the key's salt and
  // adapter. -1: none.
  int32_t find(const PrefixKey& key, const BlockHash& hash, uint64_t parent_entry,
               std::span<const int32_t> tokens) const;
  // Given: fills the block's row of blocks_ and tokens_, and gives it the first empty slot from its home on. So
  // between a block's home and its slot no slot is empty: erase() must keep it so.
  void put(int32_t block_id, IndexedBlock block, std::span<const int32_t> tokens);
  static uint32_t tag_of(const BlockHash& hash) { return static_cast<uint32_t>(hash.words[1]); }
  uint64_t home(int32_t block_id) const { return blocks_[block_id].hash.words[0] & mask_; }

  int64_t block_size_ = 0;
  std::unique_ptr<BlockHasher> hasher_;
  std::vector<IndexedBlock> blocks_;  // by block number
  std::vector<int32_t> tokens_;       // [num_blocks, block_size]
  std::vector<int32_t> scratch_;      // a block that lies on both sides of the prompt's end
  std::vector<Slot> slots_;           // the hash table, at most half full
  uint64_t mask_ = 0;
  uint64_t num_entries_ = 0;
  int64_t size_ = 0;
};

}  // namespace ladder

#pragma once
// A prefix index that checks what the scheduler owes it: a key's leading `num_indexed_blocks` blocks are those
// that the index itself has matched or indexed for that key. After a table was given up, or filled with a
// sibling's blocks, the key must have forgotten it; else an index hangs what follows onto blocks that the
// table does not have.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "step3_sequence/prefix/hash_prefix_index.h"

namespace ladder {

class CheckedIndex final : public PrefixIndex {
 public:
  CheckedIndex(int64_t num_blocks, int64_t block_size)
      : index_(num_blocks, block_size, std::make_unique<Sha256BlockHasher>(1)) {}

  void match(PrefixKey& key, const TokenView& tokens, int64_t max_blocks,
             std::vector<int32_t>& block_ids) override {
    index_.match(key, tokens, max_blocks, block_ids);
    known_[&key] = block_ids;
  }
  void insert(PrefixKey& key, const TokenView& tokens, std::span<const int32_t> block_table,
              int64_t num_full_blocks) override {
    std::vector<int32_t>& known = known_[&key];
    ASSERT_LE(key.num_indexed_blocks, std::ssize(known));
    ASSERT_TRUE(std::equal(known.begin(), known.begin() + key.num_indexed_blocks, block_table.begin()))
        << "the key speaks of blocks that the table no longer has";
    index_.insert(key, tokens, block_table, num_full_blocks);
    known.assign(block_table.begin(), block_table.begin() + num_full_blocks);
  }
  void erase(int32_t block_id) override { index_.erase(block_id); }
  bool contains(int32_t block_id) const override { return index_.contains(block_id); }
  int64_t size() const override { return index_.size(); }

 private:
  HashPrefixIndex index_;
  std::unordered_map<const PrefixKey*, std::vector<int32_t>> known_;  // the blocks, by key
};

}  // namespace ladder

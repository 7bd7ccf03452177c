// The simple version, which believes every hash:
//
//   match(tokens):  hash = root
//                   for block in full_blocks(tokens):
//                     hash = H(hash, block)
//                     if hash not in blocks: break
//                     yield blocks[hash]
//   insert(tokens, table):  the same walk; blocks[hash] = table[i]
//   erase(block_id):        del blocks[hash_of_block[block_id]]
//
// What each further line buys: hash_of() keeps names, so that a look-up costs no more names than it finds
// blocks, and none twice; find() compares tokens and parent, so that a collision is a miss and not another
// prompt's keys; entries number contents, so that two blocks of one content are one parent; slots_ is the
// hash table without a node per block, and closing the gap in erase() keeps probing short for ever.
#include "step3_sequence/prefix/hash_prefix_index.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

HashPrefixIndex::HashPrefixIndex(int64_t num_blocks, int64_t block_size, std::unique_ptr<BlockHasher> hasher)
    : block_size_(block_size),
      hasher_(std::move(hasher)),
      blocks_(num_blocks),
      tokens_(num_blocks * block_size),
      slots_(std::bit_ceil(static_cast<uint64_t>(2 * num_blocks))),
      mask_(slots_.size() - 1) {}

void HashPrefixIndex::put(int32_t block_id, IndexedBlock block, std::span<const int32_t> tokens) {
  blocks_[block_id] = std::move(block);
  std::copy(tokens.begin(), tokens.end(), tokens_.begin() + block_id * block_size_);
  uint64_t slot = home(block_id);
  while (slots_[slot].block_id >= 0) slot = (slot + 1) & mask_;
  slots_[slot] = {block_id, tag_of(blocks_[block_id].hash)};
  ++size_;
}

// >>> task 3.4: hash lazily, look up, compare, insert, erase
const BlockHash& HashPrefixIndex::hash_of(PrefixKey& key, const TokenView& tokens, int64_t index) {
  const auto block = [&](const BlockHash& parent, int64_t i) {
    return hasher_->block(parent, tokens.subspan(i * block_size_, block_size_, scratch_));
  };
  if (!key.prompt_hashes) key.prompt_hashes = std::make_shared<std::vector<BlockHash>>();
  std::vector<BlockHash>& prompt = *key.prompt_hashes;  // prompt[0] is the root, prompt[i + 1] block i
  std::vector<BlockHash>& own = key.own_hashes;
  const int64_t num_prompt_blocks = key.num_prompt_tokens / block_size_;
  if (prompt.empty()) prompt.push_back(hasher_->root(key.salt, key.adapter));
  while (std::ssize(prompt) <= std::min(index + 1, num_prompt_blocks))
    prompt.push_back(block(prompt.back(), std::ssize(prompt) - 1));
  if (index < num_prompt_blocks) return prompt[index + 1];
  while (std::ssize(own) <= index - num_prompt_blocks)
    own.push_back(block(own.empty() ? prompt.back() : own.back(), num_prompt_blocks + std::ssize(own)));
  return own[index - num_prompt_blocks];
}

void HashPrefixIndex::match(PrefixKey& key, const TokenView& tokens, int64_t max_blocks,
                            std::vector<int32_t>& block_ids) {
  block_ids.clear();
  key.forget_table();
  for (int64_t i = 0; i < max_blocks; ++i) {
    const BlockHash& hash = hash_of(key, tokens, i);
    const int32_t block_id =
        find(key, hash, key.last_entry, tokens.subspan(i * block_size_, block_size_, scratch_));
    if (block_id < 0) break;
    block_ids.push_back(block_id);
    key.num_indexed_blocks = i + 1;
    key.last_entry = blocks_[block_id].entry;
  }
}

void HashPrefixIndex::insert(PrefixKey& key, const TokenView& tokens, std::span<const int32_t> block_table,
                             int64_t num_full_blocks) {
  // Leading blocks that a sibling has indexed already need neither their names nor a look-up.
  int64_t num_known = num_full_blocks;
  while (num_known > key.num_indexed_blocks && !contains(block_table[num_known - 1])) --num_known;
  if (num_known > key.num_indexed_blocks) {
    key.num_indexed_blocks = num_known;
    key.last_entry = blocks_[block_table[num_known - 1]].entry;
  }
  for (; key.num_indexed_blocks < num_full_blocks; ++key.num_indexed_blocks) {
    const int64_t i = key.num_indexed_blocks;
    const BlockHash& hash = hash_of(key, tokens, i);
    const std::span<const int32_t> content = tokens.subspan(i * block_size_, block_size_, scratch_);
    const int32_t same = find(key, hash, key.last_entry, content);
    const uint64_t entry = same >= 0 ? blocks_[same].entry : ++num_entries_;
    IndexedBlock block{hash, entry, key.last_entry, nullptr};
    if (key.last_entry == 0 && !(key.salt.empty() && key.adapter.empty()))
      block.domain = std::make_unique<Domain>(Domain{key.salt, key.adapter});
    put(block_table[i], std::move(block), content);
    key.last_entry = entry;
  }
}

int32_t HashPrefixIndex::find(const PrefixKey& key, const BlockHash& hash, uint64_t parent_entry,
                              std::span<const int32_t> tokens) const {
  const auto same_domain = [&key](const IndexedBlock& block) {
    if (!block.domain) return key.salt.empty() && key.adapter.empty();
    return block.domain->salt == key.salt && block.domain->adapter == key.adapter;
  };
  for (uint64_t slot = hash.words[0] & mask_; slots_[slot].block_id >= 0; slot = (slot + 1) & mask_) {
    if (slots_[slot].tag != tag_of(hash)) continue;
    const int32_t block_id = slots_[slot].block_id;
    const IndexedBlock& block = blocks_[block_id];
    if (block.hash == hash && block.parent_entry == parent_entry &&
        std::equal(tokens.begin(), tokens.end(), tokens_.begin() + block_id * block_size_) &&
        (parent_entry != 0 || same_domain(block)))
      return block_id;
  }
  return -1;
}

void HashPrefixIndex::erase(int32_t block_id) {
  uint64_t hole = home(block_id);
  while (slots_[hole].block_id != block_id) hole = (hole + 1) & mask_;
  // Close the gap: whatever was pushed past it by a collision moves back, so that probing never needs marks
  // for deleted slots.
  for (uint64_t slot = (hole + 1) & mask_; slots_[slot].block_id >= 0; slot = (slot + 1) & mask_) {
    const uint64_t distance_from_home = (slot - home(slots_[slot].block_id)) & mask_;
    if (distance_from_home < ((slot - hole) & mask_)) continue;  // its home lies after the hole
    slots_[hole] = slots_[slot];
    hole = slot;
  }
  slots_[hole] = {};
  blocks_[block_id].entry = 0;
  blocks_[block_id].domain = nullptr;
  --size_;
}
// <<< task 3.4

}  // namespace ladder

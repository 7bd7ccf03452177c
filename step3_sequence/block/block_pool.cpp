#include "step3_sequence/block/block_pool.h"

#include <limits>

#include "step1_layers/core/error.h"

namespace ladder {

// >>> task 3.2: a ring of block numbers, every operation in constant time
BlockPool::BlockPool(int64_t num_blocks) {
  LADDER_CHECK(num_blocks >= 1 && num_blocks < std::numeric_limits<int32_t>::max(),
               "the number of KV blocks must be between 1 and {}, got {}",
               std::numeric_limits<int32_t>::max() - 1, num_blocks);
  blocks_.resize(num_blocks + 1);
  const auto sentinel = static_cast<int32_t>(num_blocks);
  blocks_[sentinel].previous = blocks_[sentinel].next = sentinel;
  for (int32_t id = 0; id < sentinel; ++id) push_back(id);
}

int32_t BlockPool::take_front() {
  const int32_t id = front();
  take(id);
  return id;
}

void BlockPool::take(int32_t id) {
  Block& block = blocks_[id];
  blocks_[block.previous].next = block.next;
  blocks_[block.next].previous = block.previous;
  block.previous = block.next = -1;
  --num_free_;
}

void BlockPool::push_front(int32_t id) {
  link_before(id, front());
}

void BlockPool::push_back(int32_t id) {
  link_before(id, static_cast<int32_t>(num_blocks()));
}

void BlockPool::link_before(int32_t id, int32_t next) {
  const int32_t previous = blocks_[next].previous;
  blocks_[id].previous = previous;
  blocks_[id].next = next;
  blocks_[previous].next = id;
  blocks_[next].previous = id;
  ++num_free_;
}
// <<< task 3.2

std::vector<int32_t> BlockPool::free_ids() const {
  std::vector<int32_t> result;
  const auto sentinel = static_cast<int32_t>(num_blocks());
  for (int32_t id = front(); id != sentinel; id = blocks_[id].next) result.push_back(id);
  return result;
}

}  // namespace ladder

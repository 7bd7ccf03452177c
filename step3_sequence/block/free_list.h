#pragma once
// Task 3.2: KV blocks and the list of the free ones.
//
// The list is doubly linked and intrusive: the links lie in the blocks themselves, so taking, giving back and
// taking from the middle (a prefix hit on a free block) are a few stores each and allocate nothing. The links
// are block numbers, not pointers: half the size, and still right after the array is moved. One more block at
// the end of the array is the ring's sentinel, so that no operation has a special case.
//
//   sentinel <-> front (taken next) <-> ... <-> back <-> sentinel
//
// vLLM: FreeKVCacheBlockQueue in vllm/v1/core/kv_cache_utils.py.
#include <cstdint>
#include <vector>

namespace ladder {

struct Block {
  int32_t ref_count = 0;  // table entries that hold it; 0 exactly while it is in the free list
  int32_t previous = -1;  // links of the free list; -1 while it is not in it
  int32_t next = -1;
};

class FreeList {
 public:
  // All blocks 0..num_blocks-1 are free, in this order. Error: num_blocks outside 1..2^31-2.
  explicit FreeList(int64_t num_blocks);

  int64_t size() const { return size_; }
  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()) - 1; }
  Block& block(int32_t id) { return blocks_[id]; }
  const Block& block(int32_t id) const { return blocks_[id]; }
  bool contains(int32_t id) const { return blocks_[id].next >= 0; }

  int32_t front() const { return blocks_.back().next; }  // num_blocks() when empty
  int32_t take_front();                                  // the list must not be empty
  void take(int32_t id);                                 // from wherever it is; it must be in the list
  void push_front(int32_t id);                           // it must not be in the list
  void push_back(int32_t id);

  std::vector<int32_t> ids() const;  // front to back

 private:
  void link_before(int32_t id, int32_t next);

  std::vector<Block> blocks_;  // and the sentinel
  int64_t size_ = 0;
};

}  // namespace ladder

#pragma once
// Task 3.2: all KV blocks, and the order in which the free ones are taken.
//
// The simple version:
//
//   free = deque(range(num_blocks))
//   take_front():   return free.popleft()
//   take(id):       free.remove(id)           # a prefix hit on a free block: from anywhere in the list
//   push_front(id): free.appendleft(id)       # no content worth keeping: to be taken next
//   push_back(id):  free.append(id)           # cached content: to be taken last
//
// remove() walks the whole list, with a hundred thousand blocks in it. So the list is doubly linked, and
// intrusive: the links lie in the blocks themselves, every operation is a few stores, and nothing is
// allocated. The links are block numbers, not pointers: half the size, and still right after the array is
// moved. One more block at the end of the array is the sentinel of the ring, so that no operation has a
// special case for an empty list or for an end:
//
//   sentinel <-> front (taken next) <-> ... <-> back <-> sentinel
//
// vLLM: FreeKVCacheBlockQueue in vllm/v1/core/kv_cache_utils.py.
#include <cstdint>
#include <vector>

namespace ladder {

// The pool keeps the links; the block manager alone counts references, and links a block into the free list
// exactly while its count is 0.
struct Block {
  int32_t ref_count = 0;  // entries of block tables that hold it
  int32_t previous = -1;  // links of the free list; -1 while the block is held
  int32_t next = -1;
};

// What its functions ask of a block, that it is free or is not, they do not check: the block manager's counts
// see to it.
class BlockPool {
 public:
  // All blocks 0..num_blocks-1 are free, in this order. Error: num_blocks outside 1..2^31-2.
  explicit BlockPool(int64_t num_blocks);

  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()) - 1; }
  int64_t num_free() const { return num_free_; }
  Block& block(int32_t id) { return blocks_[id]; }
  const Block& block(int32_t id) const { return blocks_[id]; }
  bool is_free(int32_t id) const { return blocks_[id].next >= 0; }

  int32_t front() const { return blocks_.back().next; }  // num_blocks() when no block is free
  int32_t take_front();                                  // a block must be free
  void take(int32_t id);                                 // this one, which must be free
  void push_front(int32_t id);                           // it must not be free
  void push_back(int32_t id);                            // likewise

  std::vector<int32_t> free_ids() const;  // front to back

 private:
  void link_before(int32_t id, int32_t next);  // `id`, which is in no list; `next` is in it, or the sentinel

  std::vector<Block> blocks_;  // and the sentinel
  int64_t num_free_ = 0;
};

}  // namespace ladder

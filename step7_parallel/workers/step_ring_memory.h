#pragma once
// Where the parts of a step ring lie in shared memory; see step_ring.h for what they mean. All zeros behind the head is a
// ring that nobody wrote to.
//
//   head | closed | 2 bells | taken, a word per reader | slot, its bytes | slot, its bytes | ...
//
// Each part begins a cache line, so that a reader's word is not fetched with another's.
#include <atomic>
#include <cstdint>

#include "step7_parallel/workers/shared_memory.h"

namespace ladder {

struct StepRingShape {
  int num_readers = 1;
  int num_slots = 16;
  uint32_t slot_bytes = 64 * 1024;
};

class StepRingMemory {
 public:
  struct alignas(64) Word {
    std::atomic<uint64_t> value;
  };
  // A futex with the number of those who sleep on it.
  struct alignas(64) Bell {
    std::atomic<uint32_t> rung, sleepers;
  };
  struct alignas(64) Slot {
    std::atomic<uint64_t> turn;  // number of the chunk in it, plus one
    uint32_t size;               // of the chunk
    uint32_t is_last;            // of its message
  };

  StepRingMemory(SharedMemory memory, const StepRingShape& shape);  // makes the ring
  explicit StepRingMemory(SharedMemory memory);                     // Error: there is none in it

  const StepRingShape& shape() const { return shape_; }
  int descriptor() const { return memory_.descriptor(); }
  std::atomic<uint64_t>& taken(int reader) const { return readers_[reader].value; }  // chunks
  Slot& slot(uint64_t chunk) const;
  char* bytes(uint64_t chunk) const;
  Bell& written() const { return bells_[0]; }       // readers sleep on it
  Bell& acknowledged() const { return bells_[1]; }  // the writer does
  std::atomic<uint64_t>& closed() const { return closed_->value; }

  static size_t size_of(const StepRingShape& shape);

 private:
  struct Header;
  void find_parts();

  SharedMemory memory_;
  StepRingShape shape_;
  Word* closed_ = nullptr;
  Bell* bells_ = nullptr;
  Word* readers_ = nullptr;
  std::byte* slots_ = nullptr;
};

}  // namespace ladder

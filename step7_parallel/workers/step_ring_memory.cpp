#include "step7_parallel/workers/step_ring_memory.h"

#include <cstring>
#include <new>

#include "step1_layers/core/error.h"

namespace ladder {

static_assert(std::atomic<uint64_t>::is_always_lock_free, "a lock would be one process's own");

struct StepRingMemory::Header {
  static constexpr uint64_t kMagic = 0x31676e6972706574;  // "tepring1"
  uint64_t magic;
  int32_t num_readers, num_slots;
  uint32_t slot_bytes;
};

namespace {

constexpr int kMaxReaders = 1024, kMaxSlots = 1 << 16;
constexpr uint32_t kMaxSlotBytes = 1u << 30;
constexpr size_t kMaxBytes = size_t{1} << 30;  // all of it is taken at once

size_t up_to_64(size_t size) {
  return (size + 63) / 64 * 64;
}

size_t slot_stride(const StepRingShape& shape) {
  return sizeof(StepRingMemory::Slot) + up_to_64(shape.slot_bytes);
}

void check_shape(const StepRingShape& shape) {
  LADDER_CHECK(shape.num_readers > 0 && shape.num_readers <= kMaxReaders && shape.num_slots > 0 &&
                   shape.num_slots <= kMaxSlots && shape.slot_bytes > 0 && shape.slot_bytes <= kMaxSlotBytes,
               "step ring: {} readers, {} slots of {} bytes", shape.num_readers, shape.num_slots,
               shape.slot_bytes);
  LADDER_CHECK(static_cast<size_t>(shape.num_slots) * slot_stride(shape) <= kMaxBytes,
               "step ring: {} slots of {} bytes are more than {}", shape.num_slots, shape.slot_bytes,
               kMaxBytes);
}

}  // namespace

StepRingMemory::StepRingMemory(SharedMemory memory, const StepRingShape& shape)
    : memory_(std::move(memory)), shape_(shape) {
  new (memory_.data()) Header{Header::kMagic, shape.num_readers, shape.num_slots, shape.slot_bytes};
  find_parts();
}

StepRingMemory::StepRingMemory(SharedMemory memory) : memory_(std::move(memory)) {
  LADDER_CHECK(memory_.size() >= sizeof(Header), "step ring: {} bytes are none", memory_.size());
  Header header;
  std::memcpy(&header, memory_.data(), sizeof header);
  LADDER_CHECK(header.magic == Header::kMagic, "step ring: the memory holds something else");
  shape_ = {header.num_readers, header.num_slots, header.slot_bytes};
  check_shape(shape_);
  LADDER_CHECK(memory_.size() >= size_of(shape_), "step ring: {} bytes of {}", memory_.size(),
               size_of(shape_));
  find_parts();
}

void StepRingMemory::find_parts() {
  std::byte* at = memory_.data() + up_to_64(sizeof(Header));
  closed_ = reinterpret_cast<Word*>(at);
  bells_ = reinterpret_cast<Bell*>(at += sizeof(Word));
  readers_ = reinterpret_cast<Word*>(at += 2 * sizeof(Bell));
  slots_ = at + static_cast<size_t>(shape_.num_readers) * sizeof(Word);
}

size_t StepRingMemory::size_of(const StepRingShape& shape) {
  check_shape(shape);
  return up_to_64(sizeof(Header)) + sizeof(Word) + 2 * sizeof(Bell) +
         static_cast<size_t>(shape.num_readers) * sizeof(Word) +
         static_cast<size_t>(shape.num_slots) * slot_stride(shape);
}

StepRingMemory::Slot& StepRingMemory::slot(uint64_t chunk) const {
  return *reinterpret_cast<Slot*>(slots_ +
                                  chunk % static_cast<uint64_t>(shape_.num_slots) * slot_stride(shape_));
}

char* StepRingMemory::bytes(uint64_t chunk) const {
  return reinterpret_cast<char*>(&slot(chunk)) + sizeof(Slot);
}

}  // namespace ladder

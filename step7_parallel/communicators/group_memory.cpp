#include "step7_parallel/communicators/group_memory.h"

#include <cstring>
#include <new>
#include <thread>

#include "step1_layers/core/error.h"

namespace ladder {

static_assert(std::atomic<uint64_t>::is_always_lock_free, "a lock would be one process's own");

struct GroupMemory::Header {
  static constexpr uint64_t kMagic = 0x3170756f72676d73;  // "smgroup1"
  uint64_t magic;
  GroupMemoryShape shape;
};

namespace {

constexpr int kMaxRanks = 256;
constexpr int64_t kMaxPartBytes = int64_t{1} << 30, kMaxSlots = 1 << 10;

size_t up_to_64(size_t size) {
  return (size + 63) / 64 * 64;
}

size_t counts_bytes(const GroupMemoryShape& shape) {
  return up_to_64(2 * static_cast<size_t>(shape.size) * sizeof(int64_t));
}
size_t staging_stride(const GroupMemoryShape& shape) {
  return sizeof(GroupMemory::Staging) + counts_bytes(shape) + static_cast<size_t>(shape.staging_bytes);
}
size_t slot_stride(const GroupMemoryShape& shape) {
  return sizeof(GroupMemory::Slot) + static_cast<size_t>(shape.slot_bytes);
}
size_t mailbox_stride(const GroupMemoryShape& shape) {
  return sizeof(GroupMemory::Mailbox) + static_cast<size_t>(shape.slots) * slot_stride(shape);
}

void check_shape(const GroupMemoryShape& shape) {
  const auto is_part = [](int64_t bytes) { return bytes >= 64 && bytes <= kMaxPartBytes && bytes % 64 == 0; };
  LADDER_CHECK(shape.size >= 1 && shape.size <= kMaxRanks,
               "a group in shared memory has 1 to {} ranks, not {}", kMaxRanks, shape.size);
  LADDER_CHECK(
      is_part(shape.staging_bytes) && is_part(shape.slot_bytes) && shape.slots >= 1 &&
          shape.slots <= kMaxSlots && shape.staging_bytes >= 64 * shape.size,
      "a group of {} in shared memory: staging of {} bytes, {} slots of {}: expected multiples of 64, and "
      "that much staging for each rank",
      shape.size, shape.staging_bytes, shape.slots, shape.slot_bytes);
}

constexpr const char* kCallNames[] = {
    "", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier", "send", "recv"};

}  // namespace

GroupMemory::GroupMemory(SharedMemory memory, const GroupMemoryShape& shape)
    : memory_(std::move(memory)), shape_(shape) {
  new (memory_.data()) Header{Header::kMagic, shape};
  find_parts();
}

GroupMemory::GroupMemory(SharedMemory memory) : memory_(std::move(memory)) {
  LADDER_CHECK(memory_.size() >= sizeof(Header), "a group in shared memory: {} bytes are none",
               memory_.size());
  Header header;
  std::memcpy(&header, memory_.data(), sizeof header);
  LADDER_CHECK(header.magic == Header::kMagic, "a group in shared memory: the memory holds something else");
  shape_ = header.shape;
  LADDER_CHECK(memory_.size() >= size_of(shape_), "a group in shared memory: {} bytes of {}", memory_.size(),
               size_of(shape_));
  find_parts();
}

void GroupMemory::find_parts() {
  std::byte* at = memory_.data() + up_to_64(sizeof(Header));
  closing_ = reinterpret_cast<Closing*>(at);
  arrived_ = reinterpret_cast<Arrived*>(at += sizeof(Closing));
  places_ = reinterpret_cast<Place*>(at += sizeof(Arrived));
  stagings_ = at += static_cast<size_t>(size()) * sizeof(Place);
  mailboxes_ = at + 2 * static_cast<size_t>(size()) * staging_stride(shape_);
}

size_t GroupMemory::size_of(const GroupMemoryShape& shape) {
  check_shape(shape);
  const auto size = static_cast<size_t>(shape.size);
  return up_to_64(sizeof(Header)) + sizeof(Closing) + sizeof(Arrived) + size * sizeof(Place) +
         2 * size * staging_stride(shape) + size * size * mailbox_stride(shape);
}

GroupMemory::Staging& GroupMemory::staging(int rank, uint64_t turn) const {
  const size_t index = 2 * static_cast<size_t>(rank) + turn % 2;
  return *reinterpret_cast<Staging*>(stagings_ + index * staging_stride(shape_));
}

int64_t* GroupMemory::counts(int rank, uint64_t turn) const {
  return reinterpret_cast<int64_t*>(&staging(rank, turn) + 1);
}

std::byte* GroupMemory::staged(int rank, uint64_t turn) const {
  return reinterpret_cast<std::byte*>(counts(rank, turn)) + counts_bytes(shape_);
}

GroupMemory::Mailbox& GroupMemory::mailbox(int from, int to) const {
  const size_t index = static_cast<size_t>(from) * static_cast<size_t>(size()) + static_cast<size_t>(to);
  return *reinterpret_cast<Mailbox*>(mailboxes_ + index * mailbox_stride(shape_));
}

GroupMemory::Slot& GroupMemory::slot(int from, int to, uint64_t number) const {
  const size_t index = number % static_cast<uint64_t>(shape_.slots);
  return *reinterpret_cast<Slot*>(reinterpret_cast<std::byte*>(&mailbox(from, to) + 1) +
                                  index * slot_stride(shape_));
}

std::byte* GroupMemory::slot_bytes(int from, int to, uint64_t number) const {
  return reinterpret_cast<std::byte*>(&slot(from, to, number) + 1);
}

void GroupMemory::close(std::string_view reason) const {
  uint32_t open = Closing::open;
  if (!closing_->state.compare_exchange_strong(open, Closing::being_closed)) return;
  reason = reason.substr(0, closing_->reason.size() - 1);
  std::memcpy(closing_->reason.data(), reason.data(), reason.size());
  closing_->reason[reason.size()] = '\0';
  closing_->state.store(Closing::closed);
  ring_all();
}

std::string GroupMemory::reason() const {
  if (closing_->state.load() == Closing::open) return {};
  // Who closes it may be between its two words, or dead there.
  const auto until = Bell::Clock::now() + std::chrono::milliseconds(100);
  while (closing_->state.load() != Closing::closed)
    if (Bell::Clock::now() < until)
      std::this_thread::yield();
    else
      return "the group was closed by a process that died over it";
  return closing_->reason.data();
}

void GroupMemory::ring_all() const {
  for (int rank = 0; rank < size(); ++rank) places_[rank].bell.ring();
}

std::string GroupMemory::name_of(int rank) const {
  const int process = place(rank).process.load();
  return process == 0 ? fmt::format("rank {} (which has not joined)", rank)
                      : fmt::format("rank {} (process {})", rank, process);
}

const char* GroupMemory::call_name(uint32_t number) {
  return number < std::size(kCallNames) ? kCallNames[number] : "something unknown";
}

uint32_t GroupMemory::call_number(std::string_view name) {
  const auto* const found = std::find(std::begin(kCallNames), std::end(kCallNames), name);
  return static_cast<uint32_t>(found - std::begin(kCallNames));
}

}  // namespace ladder

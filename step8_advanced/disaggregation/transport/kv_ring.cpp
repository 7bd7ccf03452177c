#include "step8_advanced/disaggregation/transport/kv_ring.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "step7_parallel/communicators/bell.h"
#include "step8_advanced/disaggregation/transport/kv_deadline.h"

namespace ladder {

static_assert(std::atomic<uint64_t>::is_always_lock_free, "a lock would be one process's own");

// At the beginning of the memory; the ring's bytes follow. Each word in a cache line that one side alone writes.
struct KvRing::Words {
  static constexpr uint64_t kMagic = 0x31676e6972564b4c;  // "LKVring1"

  uint64_t magic = kMagic;
  uint64_t capacity = 0;
  alignas(64) std::atomic<uint64_t> written = 0;  // bytes, ever
  alignas(64) std::atomic<uint64_t> taken = 0;
  alignas(64) std::atomic<uint32_t> closed = 0;
  Bell more_bytes = {};  // the reader sleeps on it
  Bell more_room = {};   // the writer does
};

namespace {

constexpr size_t kMaxCapacity = size_t{1} << 30;
constexpr std::chrono::microseconds kSpin{100};  // a sleeper takes some 50 us to wake

}  // namespace

// >>> task 8.7.buffer: into the ring as far as there is room, and out of it, whoever is ahead waits
size_t KvRing::write(std::span<const std::byte> bytes, KvDeadline deadline) {
  size_t done = 0;
  while (done < bytes.size()) {
    const uint64_t written = words_->written;
    const auto room = [&] { return capacity() - (written - words_->taken); };
    words_->more_room.wait_for([&] { return words_->closed != 0 || room() > 0; }, kSpin,
                               left_until(deadline));
    if (words_->closed != 0) throw KvChannelError("the ring is closed");
    const uint64_t free = room();
    if (free > capacity()) throw KvChannelError("the ring's reader has taken what was not written");
    if (free == 0) return done;

    const uint64_t at = written % capacity();
    const size_t count = std::min({bytes.size() - done, free, capacity() - at, kPiece});
    std::memcpy(&bytes_[at], &bytes[done], count);
    words_->written = written + count;  // and not before: the reader copies what this says is there
    words_->more_bytes.ring();
    done += count;
  }
  return done;
}

size_t KvRing::read(std::span<std::byte> bytes, KvDeadline deadline) {
  size_t done = 0;
  while (done < bytes.size()) {
    const uint64_t taken = words_->taken;
    const auto there = [&] { return words_->written - taken; };
    words_->more_bytes.wait_for([&] { return words_->closed != 0 || there() > 0; }, kSpin,
                                left_until(deadline));
    const bool closed = words_->closed != 0;  // first: what was written before it is there
    const uint64_t filled = there();
    if (filled > capacity()) throw KvChannelError("the ring's writer has written what there is no room for");
    if (filled == 0 && closed) throw KvChannelError("the ring is closed");
    if (filled == 0) return done;

    const uint64_t at = taken % capacity();
    const size_t count = std::min({bytes.size() - done, filled, capacity() - at, kPiece});
    std::memcpy(&bytes[done], &bytes_[at], count);
    words_->taken = taken + count;  // and not before: the writer overwrites what this says is free
    words_->more_room.ring();
    done += count;
  }
  return done;
}
// <<< task 8.7.buffer

bool KvRing::has_bytes() const {
  return words_->written != words_->taken;
}

void KvRing::close() noexcept {
  words_->closed = 1;
  words_->more_bytes.ring();
  words_->more_room.ring();
}

KvRing::KvRing(SharedMemory memory) : memory_(std::move(memory)) {
  words_ = reinterpret_cast<Words*>(memory_.data());
}

KvRing KvRing::create(size_t capacity) {
  LADDER_CHECK(capacity > 0 && capacity <= kMaxCapacity, "a ring of {} bytes: at most {} are possible",
               capacity, kMaxCapacity);
  KvRing ring(SharedMemory::create("ladder keys and values", sizeof(Words) + capacity));
  new (ring.words_) Words();
  ring.words_->capacity = capacity;
  ring.bytes_ = {ring.memory_.data() + sizeof(Words), capacity};
  return ring;
}

KvRing KvRing::open(FileDescriptor descriptor) {
  KvRing ring(SharedMemory::open(std::move(descriptor)));
  LADDER_CHECK(ring.memory_.size() > sizeof(Words) && ring.words_->magic == Words::kMagic,
               "shared memory: it holds no ring");
  const uint64_t capacity = ring.words_->capacity;
  LADDER_CHECK(capacity > 0 && capacity <= ring.memory_.size() - sizeof(Words),
               "shared memory: a ring of {} bytes in {}", capacity, ring.memory_.size());
  ring.bytes_ = {ring.memory_.data() + sizeof(Words), capacity};
  return ring;
}

}  // namespace ladder

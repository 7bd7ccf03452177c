#include "step7_parallel/workers/step_ring.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "step1_layers/core/error.h"
#include "step7_parallel/workers/futex.h"

namespace ladder {

namespace {

using Clock = std::chrono::steady_clock;

// Where processes share a core, the one that is waited for may be the next on it.
void let_others_run() {
  std::this_thread::yield();
}

}  // namespace

// >>> task 7.1: who waits looks and then sleeps, who comes wakes; chunks into slots, and out again by every reader
namespace {

void ring(StepRingMemory::Bell& bell) {
  if (bell.sleepers.load() == 0) return;
  bell.rung.fetch_add(1);
  futex_wake_all(bell.rung);
}

// False: it is not ready by the deadline.
template <class Ready>
bool wait_until(Ready ready, StepRingMemory::Bell& bell, std::chrono::microseconds spin,
                Clock::time_point deadline) {
  const Clock::time_point looks_until = std::min(Clock::now() + spin, deadline);
  do {
    if (ready()) return true;
    let_others_run();
  } while (Clock::now() < looks_until);
  while (true) {
    bell.sleepers.fetch_add(1);  // first: whoever makes it ready from here on sees it, and wakes
    const uint32_t seen = bell.rung.load();
    bool is_ready = ready();
    const Clock::duration left = deadline - Clock::now();
    if (!is_ready && left > Clock::duration::zero()) {
      futex_sleep(bell.rung, seen, left);
      is_ready = ready();
    }
    bell.sleepers.fetch_sub(1);
    if (is_ready || left <= Clock::duration::zero()) return is_ready;
  }
}

}  // namespace

// The least of what the readers say: each word is read once, since a reader that was the slowest goes on meanwhile.
uint64_t StepRingWriter::taken_by_all() const {
  uint64_t least = num_written_;
  for (int reader = 0; reader < memory_.shape().num_readers; ++reader)
    least = std::min<uint64_t>(least, memory_.taken(reader));
  return least;
}

bool StepRingWriter::has_room() const {
  return num_written_ < taken_by_all() + static_cast<uint64_t>(memory_.shape().num_slots);
}

void StepRingWriter::write(std::string_view message, std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  bool is_last = false;
  while (!is_last) {
    const bool woken = wait_until([this] { return memory_.closed() != 0 || has_room(); },
                                  memory_.acknowledged(), spin_, deadline);
    LADDER_CHECK(memory_.closed() == 0, "step ring: it is closed");
    if (!woken) {
      const std::string who = who_is_slowest();
      close();
      fail("step ring: {} has taken nothing for {} ms", who, timeout.count());
    }
    const std::string_view chunk = message.substr(0, memory_.shape().slot_bytes);
    message.remove_prefix(chunk.size());
    is_last = message.empty();
    StepRingMemory::Slot& slot = memory_.slot(num_written_);
    std::memcpy(memory_.bytes(num_written_), chunk.data(), chunk.size());
    slot.size = static_cast<uint32_t>(chunk.size());
    slot.is_last = is_last ? 1 : 0;
    slot.turn.store(++num_written_);
    ring(memory_.written());
  }
}

StepRingReader::Read StepRingReader::read(std::string& message, std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  while (true) {
    const uint64_t chunk = memory_.taken(reader_);
    StepRingMemory::Slot& slot = memory_.slot(chunk);
    const auto is_there = [&] { return slot.turn.load() == chunk + 1; };
    wait_until([&] { return is_there() || memory_.closed() != 0; }, memory_.written(), spin_, deadline);
    const bool closed = memory_.closed() != 0;  // first: nothing is written after it
    if (!is_there()) return closed ? Read::closed : Read::nothing_yet;
    const uint32_t size = slot.size;
    LADDER_CHECK(size <= memory_.shape().slot_bytes, "step ring: a chunk of {} bytes", size);
    const bool is_last = slot.is_last != 0;
    begun_.append(memory_.bytes(chunk), size);
    memory_.taken(reader_).store(chunk + 1);  // the slot may be another chunk's now
    ring(memory_.acknowledged());
    if (!is_last) continue;
    message.swap(begun_);
    begun_.clear();
    return Read::message;
  }
}
// <<< task 7.1

StepRingWriter::StepRingWriter(const StepRingShape& shape, std::chrono::microseconds spin)
    : memory_(SharedMemory::create("ladder steps", StepRingMemory::size_of(shape)), shape), spin_(spin) {}

StepRingWriter::StepRingWriter(FileDescriptor descriptor, std::chrono::microseconds spin)
    : memory_(SharedMemory::open(std::move(descriptor))), spin_(spin) {}

std::string StepRingWriter::who_is_slowest() const {
  const uint64_t least = taken_by_all();
  int reader = 0;
  while (reader + 1 < memory_.shape().num_readers && memory_.taken(reader) > least) ++reader;
  return fmt::format("reader {}", reader);
}

bool StepRingWriter::wait_until_taken(std::chrono::milliseconds timeout) {
  const auto all_taken = [this] { return taken_by_all() == num_written_; };
  wait_until([&] { return all_taken() || memory_.closed() != 0; }, memory_.acknowledged(), spin_,
             Clock::now() + timeout);
  return all_taken();
}

void StepRingWriter::close() {
  memory_.closed() = 1;
  ring(memory_.written());
  ring(memory_.acknowledged());
}

StepRingReader::StepRingReader(FileDescriptor descriptor, int reader, std::chrono::microseconds spin)
    : memory_(SharedMemory::open(std::move(descriptor))), reader_(reader), spin_(spin) {
  LADDER_CHECK(reader >= 0 && reader < memory_.shape().num_readers, "step ring: reader {} of {}", reader,
               memory_.shape().num_readers);
}

StepRingReader reader_of(const StepRingWriter& ring, std::chrono::microseconds spin) {
  FileDescriptor copy(::fcntl(ring.descriptor(), F_DUPFD_CLOEXEC, 0));
  LADDER_CHECK(copy, "a descriptor of shared memory cannot be copied: too many files are open");
  return {std::move(copy), 0, spin};
}

}  // namespace ladder

#pragma once
// Task 8.7.buffer: the bounded buffer between two engines: bytes in order from one writer to one reader, through a ring in
// memory that both see.
//
//   taken = 5                        written = 11            capacity = 8, both count for ever
//      v                                 v
//   | . . . . . 5 6 7 | 8 9 10 . . ...            byte k lies at k % 8
//
//   in memory:  | 8 | 9 | 10 |   |   | 5 | 6 | 7 |           room = capacity - (written - taken) = 2
//
// The writer copies into the room and then says so (written), a piece at a time, so that the reader copies out one piece while
// the writer fills the next. The reader copies out and then says so (taken). So neither ever touches what is the other's, and no
// lock is held that a killed process could keep. A writer that is ahead by the whole ring waits: that is back-pressure, and why a
// reader that is slow costs no memory. What is longer than the ring goes through it in turns.
//
// The words are sequentially consistent, and who waits sleeps on a Bell (step7_parallel/communicators/bell.h): its ring() comes
// after the word that it is about.
#include <cstdint>
#include <span>

#include "step7_parallel/workers/shared_memory.h"
#include "step8_advanced/disaggregation/transport/kv_channel.h"

namespace ladder {

class KvRing {
 public:
  // What is shown to the reader at once, at most: two of them lie in a core's own cache.
  static constexpr size_t kPiece = size_t{1} << 17;

  static KvRing create(size_t capacity);
  // That of another process. Error: there is none in that memory.
  static KvRing open(FileDescriptor descriptor);

  // For the other process, by a fork or over a socket.
  int descriptor() const { return memory_.descriptor(); }

  // One thread of one process. Waits for room until the deadline, again and again until all bytes are in the ring. Returns how
  // many are: fewer only if there was no room at the deadline; what there is room for is written even if that is over.
  // KvChannelError: the ring is closed, or no writer's and reader's words are in it.
  size_t write(std::span<const std::byte> bytes, KvDeadline deadline);
  // One thread of one process. Likewise, until all of `bytes` is filled; returns how much is. What was written before the ring
  // was closed can still be read; KvChannelError: it is closed and not so much is in it.
  size_t read(std::span<std::byte> bytes, KvDeadline deadline);
  // By who reads: something is there to be read.
  bool has_bytes() const;
  // By either side, any thread: whoever waits in one of the above waits no longer.
  void close() noexcept;

 private:
  struct Words;
  explicit KvRing(SharedMemory memory);

  uint64_t capacity() const { return bytes_.size(); }

  SharedMemory memory_;
  Words* words_ = nullptr;
  std::span<std::byte> bytes_;  // the ring's
};

}  // namespace ladder

#pragma once
// Task 7.1: one message for all workers, written once: a ring of slots in shared memory, one writer, N readers.
//
//   slot              0       1       2       3         num_slots = 4: chunk k lies in slot k % 4
//   turn            | 4+1   | 5+1   | 2+1   | 3+1   |   k + 1 once chunk k is there, so 5 was the last one written
//   reader 0        has taken 6 chunks: all of them
//   reader 1        has taken 3: it reads chunk 3 next, from slot 3
//
// The writer may fill the slot of chunk 6, which held chunk 2, since every reader has taken that; the slot of chunk 7 not
// yet. A message longer than a slot goes through as several chunks, also if it is longer than the whole ring: readers
// take while the writer writes.
//
// Who waits looks for a while, since a sleeping process takes some 50 us to wake, and then sleeps on a futex. Who comes
// makes a system call only if somebody sleeps. Both sides first say what they did and then look at the other's word
// (sequentially consistent): one of them sees the other, so no wake is lost.
//
// vLLM's is ShmRingBuffer in vllm/distributed/device_communicators/shm_broadcast.py: flags per reader, a fence, and
// longer messages over a socket.
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "step7_parallel/workers/step_ring_memory.h"

namespace ladder {

class StepRingWriter {
 public:
  using Clock = std::chrono::steady_clock;

  // `spin`: how long it looks before it sleeps.
  explicit StepRingWriter(const StepRingShape& shape,
                          std::chrono::microseconds spin = std::chrono::microseconds(100));

  // The writer of a ring that another process has made, and to which nobody wrote. Error: there is none in that memory.
  explicit StepRingWriter(FileDescriptor descriptor,
                          std::chrono::microseconds spin = std::chrono::microseconds(100));

  // For the readers' processes: by a fork, or sent over a socket.
  int descriptor() const { return memory_.descriptor(); }

  // Waits until the message is in the ring whole, which is before its readers have taken it. Error: the ring is closed, or
  // some reader has made no room within `timeout`, and then the ring is closed: part of a message may be in it.
  void write(std::string_view message, std::chrono::milliseconds timeout);
  // Waits until every reader has taken all that was written. False: the time is up, or the ring was closed.
  bool wait_until_taken(std::chrono::milliseconds timeout);
  // No more messages: readers get what is in the ring, and then `closed`. Wakes a write that waits, which is an Error. From
  // any thread, any number of times.
  void close();

 private:
  uint64_t taken_by_all() const;  // chunks
  bool has_room() const;
  std::string who_is_slowest() const;

  StepRingMemory memory_;
  std::chrono::microseconds spin_;
  uint64_t num_written_ = 0;  // chunks
};

class StepRingReader {
 public:
  enum class Read { message, nothing_yet, closed };

  // Reader `reader` of [0, num_readers), each in one place. Error: no ring in that memory, or no such reader.
  StepRingReader(FileDescriptor descriptor, int reader,
                 std::chrono::microseconds spin = std::chrono::microseconds(100));

  // The next message; every reader gets every one, in order. `nothing_yet`: not within `timeout`, and the next call goes
  // on. Error: what lies in the ring was not written by a StepRingWriter.
  Read read(std::string& message, std::chrono::milliseconds timeout);

 private:
  StepRingMemory memory_;
  int reader_;
  std::chrono::microseconds spin_;
  std::string begun_;  // chunks of a message whose last is still to come
};

// Reader 0 in the process that has made the ring. Error: too many files are open.
StepRingReader reader_of(const StepRingWriter& ring,
                         std::chrono::microseconds spin = std::chrono::microseconds(100));

}  // namespace ladder

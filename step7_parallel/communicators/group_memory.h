#pragma once
// Where the parts of a SharedMemoryGroup lie in its memory; shared_memory_group.h says what they mean. All zeros
// behind the head is a group in which nothing has happened.
//
//   head | closing | arrived | place, by rank | staging, by rank: 2 of {form, counts, bytes}
//                                             | mailbox, by sender and receiver: words, slots of {form, bytes}
//
// Each part begins a cache line.
#include <cstddef>

#include "step1_layers/distributed/call_form.h"
#include "step7_parallel/communicators/bell.h"
#include "step7_parallel/workers/shared_memory.h"

namespace ladder {

struct GroupMemoryShape {
  int size = 1;                               // ranks
  int64_t staging_bytes = 512 << 10;          // of a rank, twice
  int64_t slot_bytes = 256 << 10, slots = 4;  // of a mailbox: what a sender may be ahead of its receiver
};

class GroupMemory {
 public:
  struct alignas(64) Closing {
    enum State : uint32_t { open, being_closed, closed };
    std::atomic<uint32_t> state;
    std::array<char, 1000> reason;  // to be read when the state is `closed`
  };
  struct alignas(64) Arrived {
    std::atomic<uint64_t> count;  // of all ranks, ever
  };
  // What everybody may know of a rank.
  struct Place {
    Bell bell;  // the rank sleeps on it, whatever it waits for
    std::atomic<uint64_t> rounds, calls;
    std::atomic<uint32_t> doing;  // index of a call's name (call_name); 0 between calls
    std::atomic<int32_t> process;
    std::atomic<uint32_t> has_left;
  };
  struct alignas(64) Staging {
    CallForm form;
    int32_t num_sent, num_received;  // of an all_to_all's counts, at most one each per rank
  };
  struct alignas(64) Mailbox {
    std::atomic<uint64_t> written, taken;  // slots, ever
  };
  struct alignas(64) Slot {
    TensorForm form;  // of the message that begins in it
  };

  GroupMemory(SharedMemory memory, const GroupMemoryShape& shape);  // makes the group
  explicit GroupMemory(SharedMemory memory);                        // Error: there is none in it

  const GroupMemoryShape& shape() const { return shape_; }
  int size() const { return shape_.size; }
  int descriptor() const { return memory_.descriptor(); }

  Closing& closing() const { return *closing_; }
  std::atomic<uint64_t>& arrived() const { return arrived_->count; }
  Place& place(int rank) const { return places_[rank]; }
  // Staging area `turn` of a rank: there are two, in turns.
  Staging& staging(int rank, uint64_t turn) const;
  int64_t* counts(int rank, uint64_t turn) const;  // [2 * size]: sent, received
  std::byte* staged(int rank, uint64_t turn) const;
  Mailbox& mailbox(int from, int to) const;
  Slot& slot(int from, int to, uint64_t number) const;
  std::byte* slot_bytes(int from, int to, uint64_t number) const;

  // The first reason counts. Wakes everybody.
  void close(std::string_view reason) const;
  std::string reason() const;  // of the closing; empty while it is open
  void ring_all() const;
  std::string name_of(int rank) const;  // "rank 1 (process 4711)"

  static size_t size_of(const GroupMemoryShape& shape);
  static const char* call_name(uint32_t number);
  static uint32_t call_number(std::string_view name);

 private:
  struct Header;
  void find_parts();

  SharedMemory memory_;
  GroupMemoryShape shape_;
  Closing* closing_ = nullptr;
  Arrived* arrived_ = nullptr;
  Place* places_ = nullptr;
  std::byte* stagings_ = nullptr;
  std::byte* mailboxes_ = nullptr;
};

}  // namespace ladder

#pragma once
// A Communicator between processes of one machine, on the CPU, through one piece of shared memory.
//
// A rank has two staging areas. A collective goes in rounds, each of which has one meeting:
//
//   copy the next part of my input into my staging area [turn % 2]
//   arrive, and wait until all have arrived
//   take what I need out of the others' areas
//
// With one area a second meeting would have to stand at the round's end, lest a fast rank write what a slow one
// still reads. With two it may go on: it fills the other one, and comes back to the first only past the next
// meeting, to which the slow rank comes when it has read. What a call is, its sizes, dtypes and counts, lies in the
// staging area too, so that the first meeting also tells whether the ranks agree. Sums are in f32 and in rank order,
// the same bits as LocalGroup's.
//
// An all_reduce of a few kilobytes is summed by every rank whole (one meeting). Of a larger one each rank sums the
// slice that is its own, into its staging area, and after a second meeting takes the others' sums from theirs: every
// element is read and summed once and not `size` times.
//
// send and recv go through a mailbox per pair of ranks, a ring of a few slots that nobody else touches: they have no
// order with collectives or other pairs, and a sender is ahead of its receiver by what the slots hold.
//
// No wait is longer than the rank's timeout, past which the Error names the rank that is waited for, and the group
// is closed. Anybody can close it with a reason; whoever waits then has an Error of that text at once, and so has
// every later call.
#include <chrono>
#include <memory>
#include <string>

#include "step1_layers/distributed/communicator.h"
#include "step7_parallel/communicators/group_memory.h"

namespace ladder {

class SharedMemoryGroup {
 public:
  struct Patience {
    std::chrono::milliseconds timeout{300'000};  // of one wait for other ranks
    std::chrono::microseconds spin{100};         // how long a rank looks before it sleeps
  };

  // Memory of 2 * size * staging_bytes + size * size * slots * slot_bytes, all of it taken at once. Error: there is
  // not so much.
  static SharedMemoryGroup create(const GroupMemoryShape& shape);
  // The group whose descriptor() came by a fork or over a socket. Error: there is none in that memory.
  static SharedMemoryGroup open(FileDescriptor descriptor);

  int size() const { return memory_->size(); }
  int descriptor() const { return memory_->descriptor(); }

  // This process's (or thread's) rank. It leaves the group when it goes: its peers then have an Error in whatever
  // needs it. Messages that it sent before can be received. Error: there is no such rank; another one has joined as
  // it.
  std::unique_ptr<Communicator> join(int rank, const Patience& patience) const;
  std::unique_ptr<Communicator> join(int rank) const { return join(rank, Patience{}); }

  // From any process and thread, whether it is a rank or not. The first reason counts: "rank 2 failed: no memory".
  void close(const std::string& reason) const { memory_->close(reason); }
  std::string closed_because() const { return memory_->reason(); }  // empty: it is open
  // For people: what each rank does, "rank 1 (process 4711): call 12, all_reduce", a line each.
  std::string where() const;

 private:
  explicit SharedMemoryGroup(std::shared_ptr<const GroupMemory> memory) : memory_(std::move(memory)) {}

  std::shared_ptr<const GroupMemory> memory_;
};

}  // namespace ladder

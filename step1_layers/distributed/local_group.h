#pragma once
// Task 1.4: N ranks as threads of one process. The collectives read and write each other's tensors directly.
//
// Tensor parallelism can so be built, tested and debugged on any machine; NCCL and MPI implement the same
// interface in step 7.
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "step1_layers/distributed/communicator.h"

namespace ladder {

// Tensors are on the CPU and contiguous. Ranks that disagree about a call (another collective, other sizes or
// dtypes) all get the same Error. A peer that needs a rank which has left the group, or failed, gets an Error
// instead of waiting for ever.
class LocalGroup {
 public:
  explicit LocalGroup(int size);
  ~LocalGroup();

  int size() const;
  Communicator& rank(int rank);  // to be used by one thread at a time

  // The rank makes no more calls. Calls that were complete stay complete.
  void leave(int rank);
  // The same after an error: every other rank is released from whatever it waits for with the error "rank 2
  // failed: <reason>".
  void fail_rank(int rank, const std::string& reason);
  // For people: what each rank does, "rank 1: in call 12, all_reduce f32[4]; before it: ...", a line each.
  std::string where() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

// Runs fn(rank, parallel) on `size` threads whose tensor-parallel group is a LocalGroup of them, and waits
// for all. The calling thread's num_threads() are shared out among them. An exception in one rank releases
// the others from their collectives; the first exception is thrown again here. Past the deadline the ranks are
// released too, with an Error that says where each of them stands: ranks that wait for each other fail a test and
// do not hang it. Ranks that do not even then end, end the program.
void run_ranks(int size, const std::function<void(int rank, const ParallelContext& parallel)>& fn,
               std::chrono::milliseconds deadline = std::chrono::minutes(2));

}  // namespace ladder

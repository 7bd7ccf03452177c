#pragma once
// Ranks that mpirun started, on one machine or several, and groups of them. CPU tensors.
//
// What to know of Open MPI: mpirun refuses root unless OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
// are set, refuses more ranks than cores without --oversubscribe, and binds each of one or two ranks to a single
// core (take --bind-to none). A rank that dies ends all of them within about a second; one that is stopped is
// noticed by nobody but us (step7_parallel/workers/rank_watch.h, or a deadline). A child process that inherits OMPI_* and PMIX_* cannot be an MPI program of its own.
// Without mpirun the world is one rank.
// mpirun itself can hang when its ranks abort (seen with Open MPI 4.1.4 and PMIx 4.2.2): whoever starts it by a script
// bounds it from outside, `timeout -s KILL`.
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "step1_layers/distributed/communicator.h"

namespace ladder {

class MpiWorld {
 public:
  // Once per process. Error: MPI cannot be used from several threads, one at a time.
  MpiWorld();
  ~MpiWorld();  // after its groups; all ranks come here, or none (abort)

  int rank() const;
  int size() const;

  // The ranks of the world that name the same colour, in the world's order. All ranks call it, in the same order.
  // `timeout`: of one wait for other ranks; past it, and ever after, calls are an Error that names the rank waited
  // for. A group is used by one thread at a time, and so are all groups of a process.
  std::unique_ptr<Communicator> group(int colour, std::chrono::milliseconds timeout);

  // Runs the program and returns its exit code. If it throws, this rank says so in one line and ends all ranks with
  // exit code 2: whoever is in a call that needs this rank could not be told otherwise.
  int run(const std::function<int()>& program);
  [[noreturn]] void abort(int code);  // ends all ranks, now
};

}  // namespace ladder

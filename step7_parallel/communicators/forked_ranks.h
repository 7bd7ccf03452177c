#pragma once
// N ranks as forked processes of this program, whose group lies in shared memory: for tests, measurements and the
// first look at what processes are, and not for serving (whose workers are programs of their own,
// step7_parallel/workers).
#include <functional>
#include <string>
#include <vector>

#include "step7_parallel/communicators/shared_memory_group.h"

namespace ladder {

struct ForkedRanks {
  GroupMemoryShape shape = {};  // with the number of ranks
  SharedMemoryGroup::Patience patience = {};
  std::chrono::milliseconds deadline{300'000};  // of the whole
};

// Runs fn(rank, group) in a child process each and waits for all. By rank: what it threw; how it ended, if otherwise
// than by returning; empty: it returned. A child that fails closes the group, "rank 1 failed: ...", and so does its
// death. Past the deadline the group is closed too, with what every rank was doing; children that are still there
// two seconds after a closing are killed. No child goes on behind this call as a second program.
std::vector<std::string> run_forked_ranks(const ForkedRanks& ranks,
                                          const std::function<void(int rank, Communicator& group)>& fn);

}  // namespace ladder

#pragma once
// The half of a counted problem that owns the truth: makes a workload from the seed, lets a worker decide, checks each
// decision against its own model, and counts.
#include <map>
#include <random>
#include <string>

#include "bench/course_support/channel.h"

namespace ladder::course {

using Counts = std::map<std::string, int64_t>;  // by name, see README.md
using Random = std::mt19937_64;

inline int64_t integer(Random& random, int64_t low, int64_t high) {  // both included
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

// Error of each (WorkerError): a decision that is wrong, with what it was.
Counts judge_pool(Worker& worker, Random& random);
Counts judge_blocks(Worker& worker, Random& random);
Counts judge_prefix(Worker& worker, Random& random);
Counts judge_batch(Worker& worker, Random& random);
Counts judge_copies(Worker& worker, Random& random);
Counts judge_ahead(Worker& worker, Random& random);
Counts judge_static(Worker& worker, Random& random);
Counts judge_mixed(Worker& worker, Random& random);
Counts judge_shared(Worker& worker, Random& random);
Counts judge_crowded(Worker& worker, Random& random);
Counts judge_turns(Worker& worker, Random& random);

}  // namespace ladder::course

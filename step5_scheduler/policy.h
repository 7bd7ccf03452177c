#pragma once
// Task 5.4: who comes first. One comparison decides the order of the waiting queue, the order in which
// running sequences are served, and (from the other end) who is preempted.
#include <cstdint>
#include <string_view>

#include "step3_sequence/sequence.h"

namespace ladder {

enum class SchedulingPolicy : uint8_t {
  fcfs,      // first come, first served
  priority,  // lower SamplingParams::priority first, then first come
};

// Error, listing the names: anything but "fcfs" and "priority".
SchedulingPolicy parse_scheduling_policy(std::string_view name);

// A strict weak order; never equal for two sequences, since `arrival` is unique.
struct RunsBefore {
  SchedulingPolicy policy = SchedulingPolicy::fcfs;

  bool operator()(const Sequence* a, const Sequence* b) const;
};

}  // namespace ladder

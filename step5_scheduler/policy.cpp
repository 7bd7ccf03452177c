// The simple version, first come first served:
//
//   runs_before(a, b):  return a.arrival < b.arrival
//
// What each further line buys: a policy looks at its own key first, and falls back on the arrival where two are
// equal. No two sequences are equal then, so that a set may be sorted by this order, and who is preempted
// last and who first does not depend on where a sequence stands in a list.
#include "step5_scheduler/policy.h"

#include "step1_layers/core/error.h"

namespace ladder {

SchedulingPolicy parse_scheduling_policy(std::string_view name) {
  if (name == "fcfs") return SchedulingPolicy::fcfs;
  if (name == "priority") return SchedulingPolicy::priority;
  fail("the scheduling policy must be fcfs or priority, got '{}'", name);
}

// >>> task 5.4: the order of two sequences under each policy
bool RunsBefore::operator()(const Sequence* a, const Sequence* b) const {
  if (policy == SchedulingPolicy::priority && a->sampling.priority != b->sampling.priority)
    return a->sampling.priority < b->sampling.priority;
  return a->arrival < b->arrival;
}
// <<< task 5.4

}  // namespace ladder

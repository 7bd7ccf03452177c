#pragma once
// Task 5.4: the sequences that wait, in the order of the policy, preempted ones among them.
//
// The simple version is a sorted set. There are two of them, since a long prompt whose turn has not come must
// not hide the short ones after it: where there is a threshold, longer sequences lie in a set of their own,
// and next() passes over all of them in one step.
#include <set>

#include "step5_scheduler/policy.h"

namespace ladder {

class WaitingQueue {
 public:
  // A sequence of more than `long_threshold` tokens is long; 0: none is.
  WaitingQueue(SchedulingPolicy policy, int64_t long_threshold)
      : long_threshold_(long_threshold), short_(RunsBefore{policy}), long_(RunsBefore{policy}) {}

  void insert(Sequence* sequence);
  void erase(Sequence* sequence);  // which may have grown since it was inserted, or not be there
  void clear() { short_.clear(), long_.clear(); }
  bool empty() const { return short_.empty() && long_.empty(); }
  int64_t size() const { return static_cast<int64_t>(short_.size() + long_.size()); }

  // The first one in the order of the policy that comes after `previous` (null: the first of all), long ones
  // only if asked for; null: there is none. `previous` need not be in the queue any more.
  Sequence* next(Sequence* previous = nullptr, bool with_long = true) const;

 private:
  using OrderedSet = std::set<Sequence*, RunsBefore>;

  int64_t long_threshold_ = 0;
  OrderedSet short_, long_;
};

}  // namespace ladder

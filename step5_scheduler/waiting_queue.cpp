// The simple version:
//
//   insert(sequence):  waiting.add(sequence)        # a set, sorted by runs_before
//   next(previous):    return the first of `waiting` that comes after `previous`
//
// What each further line buys: a second set for long prompts, so that a walk that may start none of them passes
// over all at once; next() is the earlier of both sets' next ones.
#include "step5_scheduler/waiting_queue.h"

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

// >>> task 5.4: two sorted sets that look like one
void WaitingQueue::insert(Sequence* sequence) {
  const bool is_long = long_threshold_ > 0 && sequence->num_tokens() > long_threshold_;
  (is_long ? long_ : short_).insert(sequence);
}

void WaitingQueue::erase(Sequence* sequence) {
  short_.erase(sequence);
  long_.erase(sequence);
}

Sequence* WaitingQueue::next(Sequence* previous, bool with_long) const {
  const auto first_after = [previous](const OrderedSet& set) -> Sequence* {
    const auto found = previous == nullptr ? set.begin() : set.upper_bound(previous);
    return found == set.end() ? nullptr : *found;
  };
  Sequence* a = first_after(short_);
  Sequence* b = with_long ? first_after(long_) : nullptr;
  if (a == nullptr || b == nullptr) return a == nullptr ? b : a;
  return short_.key_comp()(a, b) ? a : b;
}
// <<< task 5.4

}  // namespace ladder

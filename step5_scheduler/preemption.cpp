// Task 5.3: preemption by recomputation. When the cache is full, the sequence that comes last in the order of
// the policy gives up its blocks and goes back to the waiting queue, where that same order puts it first. It
// keeps the tokens it has; their K and V are computed again when it returns (or found in the prefix cache).
// Swapping them to host memory costs more than computing them for all but very long sequences, which is why
// vLLM dropped it.
//
// Why this cannot go on for ever: the first of the running sequences can preempt all others, and it fits
// alone, or add() would have refused it. So it always gets on, ends, and another is the first.
#include "step5_scheduler/scheduler.h"

namespace ladder {

// >>> task 5.3: make room for a running sequence, from the end of the order
bool Scheduler::allocate_slots(Sequence& sequence, int64_t num_tokens) {
  while (!blocks_.append(sequence.block_table, num_tokens)) {
    // Blocks are on their way back from a step in flight. Preempting yet another sequence would not be
    // faster.
    if (!deferred_.empty()) return false;
    const bool itself = running_.back() == &sequence;
    preempt_last();
    if (itself) return false;
  }
  return true;
}

void Scheduler::preempt_last() {
  Sequence& sequence = *running_.back();
  running_.pop_back();
  if (sequence.num_known_blocks > 0) preempted_ids_.push_back(sequence.id);
  release_blocks(sequence);
  sequence.num_computed_tokens = 0;
  sequence.prefix.forget_table();
  sequence.status = SequenceStatus::preempted;
  ++sequence.num_preemptions;
  ++totals_.num_preemptions;
  waiting_.insert(&sequence);
}
// <<< task 5.3

}  // namespace ladder

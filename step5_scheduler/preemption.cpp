// Task 5.3: preemption by recomputation. When the cache is full, the sequence that comes last in the order of
// the policy gives up its blocks and goes back to the waiting queue, where that same order puts it first. It
// keeps the tokens it has; their K and V are computed again when it returns (or found in the prefix cache).
// Swapping them to host memory costs more than computing them for all but very long sequences, which is why
// vLLM dropped it.
//
// The simple version:
//
//   allocate_slots(sequence, num_tokens):
//     while not append(sequence.block_table, num_tokens):
//       victim = running.pop()                       # the last in the order
//       free(victim.block_table); victim.num_computed_tokens = 0; waiting.insert(victim)
//       if victim is sequence: return False
//     return True
//
// What the further lines buy: a step in flight may still write the victim's blocks, so they are given back when
// it is collected (deferred_), never earlier and never twice. While blocks are coming back like that one waits
// for them; preempting yet another sequence would not be faster. What the runner keeps of the victim is forgotten
// with the next step (preempted_ids_), and its prefix key no longer counts a table that it has given up.
//
// Why this cannot go on for ever: the first of the running sequences can preempt all others, and it fits
// alone, or add() would have refused it. So it always gets on, ends, and another is the first.
//
// Why the victim is never in the step that is being planned: the walk of schedule_continuous.cpp goes through
// running_ from its front, and a victim comes from its end. Whoever is planned stands before the sequence that
// asks; the sequence itself is planned after it has its slots.
#include "step5_scheduler/scheduler.h"

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

// >>> task 5.3: make room for a running sequence, from the end of the order; give blocks back once
bool Scheduler::allocate_slots(Sequence& sequence, int64_t num_tokens) {
  while (!blocks_.append(sequence.block_table, num_tokens)) {
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
  if (sequence.num_known_blocks > 0) ids_of(preempted_ids_, sequence.lane).push_back(sequence.id);
  if (connector_ != nullptr) tell_preempted(sequence);
  release_blocks(sequence);
  sequence.num_computed_tokens = 0;
  sequence.prefix.forget_table();
  sequence.status = SequenceStatus::preempted;
  ++sequence.num_preemptions;
  ++totals_.num_preemptions;
  waiting_.insert(&sequence);
}

void Scheduler::release_blocks(Sequence& sequence) {
  if (sequence.num_steps_in_flight > 0) {
    deferred_.push_back({sequence.last_scheduled_step, std::move(sequence.block_table), sequence.lane});
    sequence.block_table.clear();
  } else {
    blocks_.free(sequence.block_table);
  }
  sequence.num_known_blocks = 0;
}
// <<< task 5.3

}  // namespace ladder

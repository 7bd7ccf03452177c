// Task 5.2: continuous batching (Orca: Yu et al., OSDI 2022) with chunked prefill (Sarathi-Serve: Agrawal et
// al., OSDI 2024), as vLLM's Scheduler.schedule() in vllm/v1/core/sched/scheduler.py.
//
// One budget of tokens per step, and no difference between prefill and decode. First every running sequence
// gets what it lacks, in the order of the policy: a decoding one a token, one in the middle of its prompt a
// chunk. What is left of the budget goes to waiting sequences. Room in the cache is reserved before a
// sequence is scheduled; a piece too large for the budget is cut, not dropped.
#include <algorithm>

#include "step5_scheduler/scheduler.h"

namespace ladder {

// >>> task 5.2: running sequences first, then waiting ones, within one token budget
void Scheduler::schedule_continuous() {
  int64_t budget = config_.batch.max_num_batched_tokens;
  bool short_of_blocks = false;

  // allocate_slots() may preempt from the end of running_: the size is read anew each time.
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence& sequence = *running_[i];
    int64_t num_tokens = num_wanted_tokens(sequence);
    if (num_tokens > budget) num_tokens = config_.enable_chunked_prefill ? budget : 0;
    if (num_tokens == 0) continue;

    if (!allocate_slots(sequence, sequence.num_computed_tokens + num_tokens)) {
      short_of_blocks = true;
      continue;
    }
    plan(sequence, num_tokens);
    budget -= num_tokens;
  }

  if (short_of_blocks) return;  // a newcomer does not overtake who is waiting for blocks
  while (!waiting_.empty() && budget > 0 && std::ssize(running_) < config_.batch.max_num_seqs) {
    const int64_t num_tokens = admit(**waiting_.begin(), budget);
    if (num_tokens == 0) break;
    budget -= num_tokens;
  }
}
// <<< task 5.2

}  // namespace ladder

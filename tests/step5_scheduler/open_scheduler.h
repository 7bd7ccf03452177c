#pragma once
// A scheduler whose functions can be called one by one, and which can plan a step in the simplest way: with it
// the tests of tasks 5.3, 5.5 and 5.2.admit need no task that comes later.
#include <algorithm>

#include "step5_scheduler/scheduler.h"

namespace ladder {

class OpenScheduler : public Scheduler {
 public:
  using Scheduler::Admission;
  using Scheduler::Budget;
  using Scheduler::Scheduler;

  using Scheduler::admit;
  using Scheduler::allocate_slots;
  using Scheduler::chunk_size;
  using Scheduler::deferred_;
  using Scheduler::find_shared_blocks;
  using Scheduler::plan_;
  using Scheduler::preempt_last;
  using Scheduler::preempted_ids_;
  using Scheduler::release_blocks;
  using Scheduler::running_;
  using Scheduler::start_running;
  using Scheduler::take;
  using Scheduler::waiting_;

  Sequence& sequence(SequenceId id) { return *sequences_.at(id); }
  BlockManager& block_manager() { return blocks_; }

  // One step without policies, limits and preemption: who runs goes on if it gets the blocks, then the queue is
  // admitted from its front, prompts cut to the budget.
  void schedule_simply(SchedulerOutput& output) {
    begin_step(output);
    int64_t budget = config_.batch.max_num_batched_tokens;
    for (Sequence* sequence : running_) {
      const int64_t num_tokens = std::min(num_wanted_tokens(*sequence), budget);
      if (num_tokens == 0 ||
          !blocks_.append(sequence->block_table, sequence->num_computed_tokens + num_tokens))
        continue;
      plan(*sequence, num_tokens);
      budget -= num_tokens;
    }
    for (Sequence* sequence = waiting_.next(); sequence != nullptr && budget > 0;
         sequence = waiting_.next()) {
      if (std::ssize(running_) == config_.batch.max_num_seqs || sequence->num_placeholders > 0) break;
      BlockTable shared;
      blocks_.find_prefix(sequence->prefix, sequence->tokens(), shared);
      const int64_t num_shared_tokens = std::ssize(shared) * config_.batch.block_size;
      const int64_t num_tokens = std::min(sequence->num_tokens() - num_shared_tokens, budget);
      if (!blocks_.allocate(sequence->block_table, shared, num_shared_tokens + num_tokens)) break;
      waiting_.erase(sequence);
      start_running(*sequence);
      sequence->num_computed_tokens = sequence->num_cached_tokens = num_shared_tokens;
      plan(*sequence, num_tokens);
      budget -= num_tokens;
    }
    end_step(output);
  }
};

}  // namespace ladder

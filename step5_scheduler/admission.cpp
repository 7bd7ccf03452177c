// Task 5.2, its second half: how a waiting sequence starts to run, and what it need not compute.
#include <algorithm>

#include "step5_scheduler/scheduler.h"

namespace ladder {

// >>> task 5.2: start a waiting sequence, sharing the blocks that hold its first tokens already
// Starts a waiting sequence with what the budget allows; returns its number of tokens, 0 if it has to wait.
int64_t Scheduler::admit(Sequence& sequence, int64_t budget) {
  // It was preempted while a token was being sampled, which comes with the step that is still in flight.
  if (sequence.num_placeholders > 0) return 0;
  find_shared_blocks(sequence, shared_blocks_);

  const int64_t num_shared_tokens = std::ssize(shared_blocks_) * config_.batch.block_size;
  int64_t num_tokens = sequence.num_tokens() - num_shared_tokens;
  if (num_tokens > budget) num_tokens = config_.enable_chunked_prefill ? budget : 0;
  if (num_tokens == 0) return 0;
  // Even a first chunk waits until all of the sequence would fit, else it would soon be preempted again.
  const int64_t num_tokens_now = num_shared_tokens + num_tokens;
  const int64_t num_blocks_later =
      blocks_.blocks_for(sequence.num_tokens()) - blocks_.blocks_for(num_tokens_now);
  if (!blocks_.allocate(sequence.block_table, shared_blocks_, num_tokens_now, num_blocks_later)) return 0;

  waiting_.erase(&sequence);
  start_running(sequence);
  sequence.num_computed_tokens = num_shared_tokens;
  if (sequence.num_preemptions == 0) {
    sequence.num_cached_tokens = num_shared_tokens;
    totals_.num_prefix_queried_tokens += sequence.num_prompt_tokens;
    totals_.num_prefix_hit_tokens += num_shared_tokens;
  }
  plan(sequence, num_tokens);
  return num_tokens;
}

// Full blocks that hold the sequence's first tokens already: a cached prefix, or the prompt of a sibling (a
// completion of the same request) that is running. A sibling may have been given its prompt in this very
// step: it comes before in the batch. It is never in the middle of its prompt here, since it would then have
// taken all that was left of the budget.
void Scheduler::find_shared_blocks(Sequence& sequence, BlockTable& shared) {
  shared.clear();
  // The log probability of every prompt token needs every prompt token computed.
  if (sequence.sampling.prompt_logprobs) return;
  blocks_.find_prefix(sequence.prefix, sequence.token_ids, shared);

  // The block that the prompt fills only partly is computed by each sibling for itself, and so is the last
  // token: its logits are needed.
  const int64_t num_sharable_blocks =
      std::min(sequence.num_prompt_tokens, sequence.num_tokens() - 1) / config_.batch.block_size;
  if (std::ssize(shared) >= num_sharable_blocks) return;
  for (int64_t i = 0; i < sequence.sampling.n; ++i) {
    const Sequence* sibling = find(sequence.first_sibling + i);
    if (sibling == nullptr || sibling->status != SequenceStatus::running ||
        sibling->num_computed_tokens < num_sharable_blocks * config_.batch.block_size)
      continue;
    shared.assign(sibling->block_table.begin(), sibling->block_table.begin() + num_sharable_blocks);
    sequence.prefix.forget_table();
    return;
  }
}
// <<< task 5.2

}  // namespace ladder

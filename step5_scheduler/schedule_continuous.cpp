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
void Scheduler::schedule_continuous(SchedulerOutput& output) {
  int64_t budget = config_.max_num_batched_tokens;
  bool short_of_blocks = false;

  // reserve() may preempt from the end of running_: the size is read anew each time.
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence& sequence = *running_[i];
    int64_t num_tokens = num_wanted_tokens(sequence);
    if (num_tokens > budget) num_tokens = config_.enable_chunked_prefill ? budget : 0;
    if (num_tokens == 0) continue;

    const int64_t num_slots = sequence.num_computed_tokens + num_tokens;
    const int64_t num_known_blocks = std::ssize(sequence.block_table);
    if (num_slots > num_known_blocks * config_.block_size && !reserve(sequence, num_slots)) {
      short_of_blocks = true;
      continue;
    }
    emit(sequence, num_tokens, num_known_blocks, output);
    budget -= num_tokens;
  }

  if (short_of_blocks) return;  // a newcomer does not overtake who is waiting for blocks
  while (!waiting_.empty() && budget > 0 && std::ssize(running_) < config_.max_num_seqs) {
    const int64_t num_tokens = admit(**waiting_.begin(), budget, output);
    if (num_tokens == 0) break;
    budget -= num_tokens;
  }
}

int64_t Scheduler::num_wanted_tokens(const Sequence& sequence) const {
  // Everything it may still get is being sampled already.
  if (sequence.num_output_tokens() + sequence.num_placeholders >= *sequence.sampling.max_tokens) return 0;
  // The baseline without KV reuse starts over from the token that is still being sampled.
  if (config_.recompute_everything && sequence.num_placeholders > 0) return 0;
  return sequence.num_uncomputed_tokens();
}

// Starts a waiting sequence with what the budget allows; returns its number of tokens, 0 if it has to wait.
int64_t Scheduler::admit(Sequence& sequence, int64_t budget, SchedulerOutput& output) {
  // It was preempted while a token was being sampled, which comes with the step that is still in flight.
  if (sequence.num_placeholders > 0) return 0;
  find_shared_blocks(sequence, shared_blocks_);

  const int64_t num_shared_tokens = std::ssize(shared_blocks_) * config_.block_size;
  int64_t num_tokens = sequence.num_tokens() - num_shared_tokens;
  if (num_tokens > budget) num_tokens = config_.enable_chunked_prefill ? budget : 0;
  if (num_tokens == 0) return 0;
  // Even a first chunk waits until all of the sequence would fit, else it would soon be preempted again.
  if (!blocks_.allocate(sequence.block_table, shared_blocks_, num_shared_tokens + num_tokens,
                        sequence.num_tokens()))
    return 0;

  waiting_.erase(&sequence);
  start_running(sequence);
  sequence.num_computed_tokens = num_shared_tokens;
  if (sequence.num_preemptions == 0) {
    sequence.num_cached_tokens = num_shared_tokens;
    totals_.num_prefix_queried_tokens += sequence.num_prompt_tokens;
    totals_.num_prefix_hit_tokens += num_shared_tokens;
  }
  emit(sequence, num_tokens, 0, output);
  return num_tokens;
}

// Full blocks that hold the sequence's first tokens already: a cached prefix, or the prompt of a sibling (a
// completion of the same request) that is running. A sibling may have been given its prompt in this very
// step: it comes before in the batch. It is never in the middle of its prompt here, since it would then have
// taken all that was left of the budget.
void Scheduler::find_shared_blocks(Sequence& sequence, BlockTable& shared) {
  shared.clear();
  // The log probability of every prompt token needs every prompt token computed.
  if (config_.recompute_everything || sequence.sampling.prompt_logprobs) return;
  blocks_.find_prefix(sequence.prefix, sequence.token_ids, shared);

  // The block that the prompt fills only partly is computed by each sibling for itself, and so is the last
  // token: its logits are needed.
  const int64_t num_sharable_blocks =
      std::min(sequence.num_prompt_tokens, sequence.num_tokens() - 1) / config_.block_size;
  if (std::ssize(shared) >= num_sharable_blocks) return;
  for (int64_t i = 0; i < sequence.sampling.n; ++i) {
    const Sequence* sibling = find(sequence.first_sibling + i);
    if (sibling == nullptr || sibling->status != SequenceStatus::running ||
        sibling->num_computed_tokens < num_sharable_blocks * config_.block_size)
      continue;
    shared.assign(sibling->block_table.begin(), sibling->block_table.begin() + num_sharable_blocks);
    sequence.prefix.forget_table();
    return;
  }
}

void Scheduler::start_running(Sequence& sequence) {
  sequence.status = SequenceStatus::running;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &sequence, RunsBefore{config_.policy}),
                  &sequence);
}

// Writes down that the sequence computes `num_tokens` in this step: for the runner, and for update().
void Scheduler::emit(Sequence& sequence, int64_t num_tokens, int64_t num_known_blocks,
                     SchedulerOutput& output) {
  output.scheduled.push_back({sequence.id, num_tokens, {}});
  output.total_num_tokens += num_tokens;
  if (sequence.known_to_runner) {
    output.continued.push_back({sequence.id,
                                {sequence.block_table.begin() + num_known_blocks, sequence.block_table.end()},
                                sequence.num_computed_tokens});
  } else {
    output.new_sequences.push_back({sequence.id, sequence.token_ids, sequence.num_prompt_tokens,
                                    sequence.sampling, sequence.block_table, sequence.num_computed_tokens});
    sequence.known_to_runner = true;
  }

  const int64_t num_computed_before = sequence.num_computed_tokens;
  sequence.num_computed_tokens += num_tokens;
  const bool samples = sequence.num_uncomputed_tokens() == 0;
  if (samples) ++sequence.num_placeholders;
  ++sequence.num_steps_in_flight;
  sequence.last_scheduled_step = output.step;
  in_flight_.back().sequences.push_back(
      {&sequence, num_computed_before, sequence.num_computed_tokens, sequence.num_preemptions, samples});
}
// <<< task 5.2

}  // namespace ladder

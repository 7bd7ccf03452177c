// Task 5.2.admit: how much of a prompt is computed in one step, how a waiting sequence starts to
// run, and what it need not compute. The simple version:
//
//   admit(sequence, budget):
//     shared = find_prefix(sequence)
//     n = min(sequence.num_tokens - len(shared) * block_size, budget)
//     if not allocate(sequence.block_table, shared, n): return 0
//     waiting.remove(sequence); running.append(sequence); plan(sequence, n)
//     return n
//
// What each further line buys:
//
//   chunk_size()            limits for prompts that are not computed whole (vLLM: PartialPrefillMetadata)
//   siblings                the completions of one request compute and hash its prompt once, index or not
//   headroom                the blocks that it needs later, those that more urgent prompts still need, and the
//                           watermark: a sequence that is admitted into the last block is soon preempted
//                           again, and what it computed is computed twice
#include <algorithm>

#include "step5_scheduler/scheduler.h"

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

// >>> task 5.2.admit: chunks within the limits; start a waiting sequence, sharing what is computed already
int64_t Scheduler::chunk_size(int64_t num_wanted, Budget& budget) const {
  if (num_wanted <= budget.prefill && (!budget.with_limits || !is_long(num_wanted))) return num_wanted;
  if (!config_.enable_chunked_prefill) return 0;
  if (!budget.with_limits) return budget.prefill;
  budget.limited = true;
  const int64_t num_shares = config_.max_num_partial_prefills - budget.num_partial;
  if (num_shares <= 0 || (is_long(num_wanted) && budget.num_long >= config_.max_long_partial_prefills))
    return 0;
  const int64_t share = (budget.prefill + num_shares - 1) / num_shares;
  return is_long(num_wanted) ? std::min(share, config_.long_prefill_token_threshold) : share;
}

void Scheduler::take(int64_t num_wanted, int64_t num_tokens, Budget& budget) const {
  budget.prefill -= num_tokens;
  if (num_tokens == num_wanted) return;
  ++budget.num_partial;
  budget.num_long += is_long(num_wanted);
}

Scheduler::Admission Scheduler::admit(Sequence& sequence, Budget& budget) {
  // It was preempted while a token was being sampled, which comes with the step that is still in flight.
  if (sequence.num_placeholders > 0) return Admission::refused;
  if (connector_ != nullptr)
    if (const std::optional<Admission> decided = admit_from_outside(sequence, budget)) return *decided;
  if (!find_shared_blocks(sequence, shared_blocks_)) return Admission::passed_over;

  const int64_t num_shared_tokens = std::ssize(shared_blocks_) * config_.batch.block_size;
  const int64_t num_wanted = sequence.num_tokens() - num_shared_tokens;
  const int64_t num_tokens = chunk_size(num_wanted, budget);
  if (num_tokens == 0) return is_long(num_wanted) ? Admission::too_long : Admission::refused;
  // Even a first chunk waits until all of the sequence would fit.
  const int64_t num_slots = num_shared_tokens + num_tokens;
  const int64_t num_later = blocks_.blocks_for(sequence.num_tokens()) - blocks_.blocks_for(num_slots);
  const int64_t headroom = running_.empty() ? 0 : num_watermark_blocks_ + budget.num_promised_blocks;
  if (!blocks_.allocate(sequence.block_table, shared_blocks_, num_slots, num_later + headroom))
    return Admission::refused;

  waiting_.erase(&sequence);
  start_running(sequence);
  sequence.num_computed_tokens = num_shared_tokens;
  if (sequence.num_preemptions == 0) {
    sequence.num_cached_tokens = num_shared_tokens;
    totals_.num_prefix_queried_tokens += sequence.num_prompt_tokens;
    totals_.num_prefix_hit_tokens += num_shared_tokens;
  }
  plan(sequence, num_tokens);
  take(num_wanted, num_tokens, budget);
  budget.num_promised_blocks += num_later;
  return Admission::admitted;
}

bool Scheduler::find_shared_blocks(Sequence& sequence, BlockTable& shared) {
  shared.clear();
  // The log probability of every prompt token needs every prompt token computed.
  if (sequence.sampling.prompt_logprobs) return true;

  // The block that the prompt fills only partly is computed by each sibling for itself, and so is the last
  // token: its logits are needed.
  const int64_t num_sharable_blocks =
      std::min(sequence.num_prompt_tokens, sequence.num_tokens() - 1) / config_.batch.block_size;
  bool is_being_computed = false;
  for (int64_t i = 0; i < sequence.sampling.n && num_sharable_blocks > 0; ++i) {
    const Sequence* sibling = find(sequence.first_sibling + i);
    if (sibling == nullptr || sibling->status != SequenceStatus::running) continue;
    if (sibling->num_computed_tokens < num_sharable_blocks * config_.batch.block_size) {
      is_being_computed = true;
      continue;
    }
    shared.assign(sibling->block_table.begin(), sibling->block_table.begin() + num_sharable_blocks);
    sequence.prefix.forget_table();
    break;
  }
  // The cache may hold more: output that a preempted sequence has computed before.
  if (!shared.empty() && sequence.num_output_tokens() == 0) return true;
  blocks_.find_prefix(sequence.prefix, sequence.tokens(), cached_blocks_);
  if (cached_blocks_.size() >= shared.size())
    shared.swap(cached_blocks_);
  else
    sequence.prefix.forget_table();
  return !is_being_computed || std::ssize(shared) >= num_sharable_blocks;
}
// <<< task 5.2.admit

}  // namespace ladder

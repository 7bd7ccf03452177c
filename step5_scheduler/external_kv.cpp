// Task 8.7.scheduler: keys and values that come from another engine, and those that are kept for one (kv_connector.h).
// vLLM: Scheduler._update_waiting_for_remote_kv(), _connector_finished() in vllm/v1/core/sched/scheduler.py.
//
//   waiting --start_load()--> waiting_for_kv --end_load(), run_loaded()--> running --> finished --hold()--> held
//      |                             | abort                                  |                             |
//      +--- nothing to be had: admit() as ever                                +--> preempted: computed here | release
//                                    v                                                                      v
//                              cancelled load --end_load()-----------------------------------------------> free
//
// The simple version, where nothing fails and nobody goes away:
//
//   schedule():          for id, n in connector.poll().loads:
//                          sequence.num_computed_tokens += n; running.add(sequence)
//   admit(sequence):     n = connector.num_external_tokens(sequence, len(shared) * block_size)
//                        if n > 0: allocate(sequence.block_table, shared, ALL its tokens)
//                                  waiting.remove(sequence); connector.start_load(sequence, n)
//   finish(sequence):    if connector.hold(sequence): held[sequence.id] = sequence.block_table
//   connector.released:  free(held.pop(id))
//
// What each further line buys:
//
//   all its tokens      what was loaded can compute its next step: two that hold what they loaded and lack one block each
//                       would wait for each other for ever
//   run_loaded()        who has blocks does not queue behind somebody who lacks them; from running_ it can be preempted
//   over                what came may be less than was wanted, and a message may come twice: it counts once
//   cache() at the end  a block is found by others when all of it has come, never before
//   cancelled_loads_    a sequence ends at once, its blocks when nothing writes them any more
//   is_first()          a request with n completions is loaded once, and kept once
//   on_unneeded()       who finds its tokens here, or goes away, does not leave them lying over there
//   last_scheduled_step a step that ran ahead of the end may still write the last block that a reader gives back
#include <algorithm>
#include <utility>

#include "step5_scheduler/scheduler.h"

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

// >>> task 8.7.scheduler: load from outside, keep for a reader, and give every block back once
void Scheduler::take_kv_events() {
  const KvConnectorEvents events = connector_->poll();
  for (const FinishedKvLoad& load : events.loads) end_load(load);
  for (const SequenceId id : events.released) release_held(id);
  run_loaded();
}

std::optional<Scheduler::Admission> Scheduler::admit_from_outside(Sequence& sequence, const Budget& budget) {
  if (sequence.kv_transfer == nullptr || sequence.num_preemptions > 0) return {};
  if (!is_first(sequence)) {
    const Sequence* first = find(sequence.first_sibling);
    if (first == nullptr || first->status != SequenceStatus::waiting_for_kv) return {};
    return Admission::passed_over;
  }
  if (sequence.kv_transfer->do_remote_decode && !connector_->may_start(sequence)) {
    may_not_start_ = true;
    return Admission::passed_over;
  }
  if (!sequence.kv_transfer->do_remote_prefill) return {};
  if (!sequence.sampling.prompt_logprobs) {
    if (!find_shared_blocks(sequence, shared_blocks_)) return Admission::passed_over;
    const int64_t num_shared_tokens = std::ssize(shared_blocks_) * config_.batch.block_size;
    // Its last token's logits are needed: that one is computed here.
    const int64_t num_tokens = std::min(connector_->num_external_tokens(sequence, num_shared_tokens),
                                        sequence.num_tokens() - 1 - num_shared_tokens);
    if (num_tokens > 0) return start_load(sequence, num_tokens, budget);
  }
  connector_->on_unneeded(sequence);
  return {};
}

Scheduler::Admission Scheduler::start_load(Sequence& sequence, int64_t num_tokens, const Budget& budget) {
  if (std::ssize(loads_) >= max_num_running()) return Admission::refused;
  const int64_t headroom =
      running_.empty() && loads_.empty() ? 0 : num_watermark_blocks_ + budget.num_promised_blocks;
  if (!blocks_.allocate(sequence.block_table, shared_blocks_, sequence.num_tokens(), headroom))
    return Admission::refused;
  waiting_.erase(&sequence);
  sequence.status = SequenceStatus::waiting_for_kv;
  sequence.num_computed_tokens = std::ssize(shared_blocks_) * config_.batch.block_size;
  totals_.num_prefix_queried_tokens += sequence.num_prompt_tokens;
  totals_.num_prefix_hit_tokens += sequence.num_computed_tokens;
  loads_.push_back({&sequence, num_tokens});
  connector_->start_load(
      {sequence.id, sequence.block_table, sequence.num_computed_tokens, num_tokens, sequence.kv_transfer});
  return Admission::passed_over;
}

void Scheduler::end_load(const FinishedKvLoad& event) {
  if (const auto cancelled = cancelled_loads_.find(event.id); cancelled != cancelled_loads_.end()) {
    blocks_.free(cancelled->second);
    cancelled_loads_.erase(cancelled);
    return;
  }
  const auto load = std::find_if(loads_.begin(), loads_.end(),
                                 [&](const Load& one) { return one.sequence->id == event.id; });
  if (load == loads_.end() || std::exchange(load->over, true)) return;
  Sequence& sequence = *load->sequence;
  const int64_t num_tokens = std::clamp<int64_t>(event.num_tokens, 0, load->num_tokens);
  if (event.ends_sequence && num_tokens < load->num_tokens) {
    finish(sequence, FinishReason::error);
    forget_if_done(sequence);
    failed_loads_.push_back(event);
    return;
  }
  sequence.num_computed_tokens += num_tokens;
  sequence.num_cached_tokens = sequence.num_computed_tokens;
  totals_.num_external_tokens += num_tokens;
  blocks_.cache(sequence.prefix, sequence.tokens(), sequence.block_table, sequence.num_computed_tokens);
}

void Scheduler::run_loaded() {
  const RunsBefore runs_before{config_.policy};
  while (std::ssize(running_) < max_num_running()) {
    const auto next = std::min_element(loads_.begin(), loads_.end(), [&](const Load& a, const Load& b) {
      return a.over != b.over ? a.over : runs_before(a.sequence, b.sequence);
    });
    if (next == loads_.end() || !next->over) return;
    start_running(*next->sequence);
    loads_.erase(next);
  }
}

void Scheduler::leave_blocks(Sequence& sequence) {
  if (!is_first(sequence)) return;
  const auto load =
      std::find_if(loads_.begin(), loads_.end(), [&](const Load& one) { return one.sequence == &sequence; });
  if (load != loads_.end()) {
    if (!load->over) {
      cancelled_loads_.emplace(sequence.id, std::exchange(sequence.block_table, {}));
      connector_->cancel_load(sequence.id);
    }
    loads_.erase(load);
  } else if (sequence.kv_transfer->do_remote_prefill && sequence.block_table.empty() &&
             sequence.num_preemptions == 0) {
    connector_->on_unneeded(sequence);
  }
  if (!sequence.kv_transfer->do_remote_decode) return;
  const std::optional<KvTransferParams> answer = connector_->hold(sequence);
  if (!answer || sequence.block_table.empty()) return;
  const int64_t last_step = sequence.num_steps_in_flight > 0 ? sequence.last_scheduled_step : -1;
  held_.emplace(
      sequence.id,
      HeldBlocks{std::exchange(sequence.block_table, {}), sequence.num_computed_tokens, last_step,
                 answer->do_remote_prefill ? std::make_shared<const KvTransferParams>(*answer) : nullptr});
}

void Scheduler::release_held(SequenceId id) {
  const auto held = held_.find(id);
  if (held == held_.end()) return;
  if (!in_flight_.empty() && in_flight_.front().step <= held->second.last_scheduled_step)
    deferred_.push_back(
        {held->second.last_scheduled_step, std::move(held->second.block_table), StepPhase::any});
  else
    blocks_.free(held->second.block_table);
  held_.erase(held);
}

void Scheduler::tell_computed(const InFlightSequence& record) {
  const Sequence& sequence = *record.sequence;
  if (is_first(sequence) && sequence.kv_transfer->do_remote_decode &&
      record.epoch == sequence.num_preemptions)
    connector_->on_computed(sequence, record.num_computed_after);
}

void Scheduler::tell_preempted(const Sequence& sequence) {
  if (is_first(sequence) && sequence.kv_transfer->do_remote_decode) connector_->on_computed(sequence, 0);
}
// <<< task 8.7.scheduler

}  // namespace ladder

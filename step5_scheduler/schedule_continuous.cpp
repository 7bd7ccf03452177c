// Task 5.2: continuous batching (Orca: Yu et al., OSDI 2022) with chunked prefill (Sarathi-Serve: Agrawal et
// al., OSDI 2024), as vLLM's Scheduler.schedule() in vllm/v1/core/sched/scheduler.py.
//
// There is one budget of tokens per step, and no difference between prefill and decode: every sequence gets
// what it lacks, and what is too large for the budget is cut, not dropped. The simple version:
//
//   budget = max_num_batched_tokens
//   for sequence in running:                                     # in the order of the policy
//     n = min(num_wanted_tokens(sequence), budget)
//     if n > 0 and allocate_slots(sequence, sequence.num_computed_tokens + n):
//       plan(sequence, n); budget -= n
//   while waiting and budget > 0 and len(running) < max_num_seqs:
//     n = admit(waiting[0], budget)
//     if n == 0: break                                           # none overtakes the head of the queue
//     budget -= n
//
// What each further line buys:
//
//   set_aside()               One token for each decode before anything is given out: a long prompt that comes
//                             earlier in the order fills what is left, and no decode ever waits for it.
//   one walk over both lists  Running and waiting sequences are merged in the order of the policy, so that an
//                             urgent prompt gets its tokens before the next chunk of a less urgent one.
//   chunk_size()              The limits of partial prefills: short prompts pass long ones.
//   the second walk           What the limits left over goes to those that were cut or passed over. A limit
//                             decides who comes first; it never leaves budget unused.
//   request_passed_over       Of many completions that wait for the same prompt one looks at all siblings and at
//                             the prefix index in each step, not every one of them.
//   is_of_phase()             Prompts and answers in steps of their own (8.7.lanes): a step passes over who is for the other.
//   pipeline_depth            In a pipeline a step leaves the next ones, in other stages, their share of the decodes.
//   short_of_blocks           A newcomer does not overtake a sequence that waits for blocks, nor take those
//                             that a preemption has just freed. Sequences that run and need no block go on.
#include <algorithm>

#include "step5_scheduler/scheduler.h"

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

// >>> task 5.2: one walk in the order of the policy over running and waiting sequences, within one budget
void Scheduler::schedule_continuous() {
  Budget budget = set_aside();
  walk(budget);
  if (phase_ == StepPhase::decode) decodes_lack_blocks_ = budget.short_of_blocks;
  if (!budget.limited || budget.prefill == 0 || budget.short_of_blocks) return;
  budget.with_limits = false;
  walk(budget);
}

Scheduler::Budget Scheduler::set_aside() const {
  Budget budget;
  budget.short_of_blocks = phase_ == StepPhase::prefill && decodes_lack_blocks_;
  if (phase_ == StepPhase::prefill) budget.prefill = num_step_tokens_;
  if (phase_ == StepPhase::decode) budget.decode = config_.batch.max_num_seqs;
  if (phase_ != StepPhase::any) return budget;
  int64_t num_in_flight = 0;
  for (const Sequence* sequence : running_) {
    budget.decode += num_wanted_tokens(*sequence) == 1;
    num_in_flight += sequence->num_placeholders > 0;
  }
  if (const int64_t depth = config_.pipeline_depth; depth > 1)
    budget.decode = std::min(budget.decode, (budget.decode + num_in_flight + depth - 1) / depth);
  budget.decode = std::min(budget.decode, num_step_tokens_);
  budget.prefill = num_step_tokens_ - budget.decode;
  return budget;
}

void Scheduler::walk(Budget& budget) {
  const RunsBefore runs_before{config_.policy};
  budget.num_promised_blocks = 0;
  Sequence* newcomer = waiting_.next();
  bool with_long = true;
  SequenceId request_passed_over = -1;
  for (size_t i = 0;;) {
    // allocate_slots() preempts from the end of running_ and admit() inserts: the size is read anew each time.
    const size_t num_running = running_.size();
    if (budget.prefill == 0 || budget.short_of_blocks || std::ssize(running_) >= max_num_running() ||
        step_is_full())
      newcomer = nullptr;
    if (newcomer != nullptr && (i == num_running || runs_before(newcomer, running_[i]))) {
      const Admission admission =
          newcomer->first_sibling == request_passed_over ? Admission::passed_over : admit(*newcomer, budget);
      if (admission == Admission::refused) {
        newcomer = nullptr;
        continue;
      }
      if (admission == Admission::passed_over && newcomer->num_output_tokens() == 0)
        request_passed_over = newcomer->first_sibling;
      with_long &= admission != Admission::too_long;
      newcomer = waiting_.next(newcomer, with_long);
      i += admission == Admission::admitted;
    } else if (i < num_running) {
      go_on(*running_[i++], budget);
    } else {
      return;
    }
  }
}

void Scheduler::go_on(Sequence& sequence, Budget& budget) {
  const int64_t num_wanted = num_wanted_tokens(sequence);
  if (num_wanted > 0 && !is_of_phase(sequence, num_wanted)) return;
  const bool decodes = num_wanted == 1 && budget.decode > 0;
  if (num_wanted == 1 && !decodes && config_.pipeline_depth > 1) return;  // of another step's share
  const auto cut = budget.with_limits ? plan_.end()
                                      : std::find_if(plan_.begin(), plan_.end(), [&](const Planned& planned) {
                                          return planned.sequence == &sequence;
                                        });
  const bool is_cut = cut != plan_.end();
  if (!is_cut && step_is_full()) return;
  const int64_t num_tokens = decodes ? 1 : chunk_size(num_wanted, budget);
  if (num_tokens > 0) {
    const int64_t num_slots = sequence.num_computed_tokens + num_tokens;
    // In the second walk those at the end of running_ may be planned already: they are not preempted.
    const int64_t num_preemptions = totals_.num_preemptions;
    const bool has_slots = budget.with_limits ? allocate_slots(sequence, num_slots)
                                              : blocks_.append(sequence.block_table, num_slots);
    budget.short_of_blocks |= !has_slots || totals_.num_preemptions > num_preemptions;
    if (!has_slots) return;
    if (!is_cut) {
      plan(sequence, num_tokens);
    } else {
      cut->num_tokens += num_tokens;
      sequence.num_computed_tokens += num_tokens;
    }
    if (decodes)
      --budget.decode;
    else
      take(num_wanted, num_tokens, budget);
  }
  if (num_tokens < num_wanted)
    budget.num_promised_blocks +=
        blocks_.blocks_for(sequence.num_tokens()) - std::ssize(sequence.block_table);
}
// <<< task 5.2

}  // namespace ladder

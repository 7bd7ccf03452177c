// Task 5.1: the static batcher, the baseline that the other tasks improve on.
//
// A batch is admitted together and runs until all of it is done. Three things are wasted, and really spent,
// so that the later tasks can be measured against it:
//
//   slots    each sequence reserves the cache for the longest answer it may give
//   prompts  are padded to the longest of the batch          p p p p p p p p
//   rows     of sequences that ended stay until the last     . . . p p p p p o o o o
//                                                            . p p p p p p p o o . .
//
// The simple version:
//
//   if not running: running = take from waiting what fits, each with blocks for its longest answer
//   for sequence in running: plan(sequence, num_wanted_tokens(sequence))
//   padding = len(running) * longest - tokens     # the dots
//
// What each further line buys: prompts_done keeps those whose prompt is done from decoding before the others;
// the budget spreads prompts and padding over several steps; start_over_ is the baseline before this one, in
// which nothing of the KV cache is used again.
//
// The padding (the dots) travels as SchedulerOutput::num_static_padding_rows: rows of slot -1 that the runner
// computes and ignores. The token budget still bounds a step: prompts that do not fit into one step take
// several, and padding that does not fit is caught up with in the steps that follow.
#include <algorithm>

#include "step5_scheduler/scheduler.h"

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

// >>> task 5.1: admit a whole batch, compute its prompts, then one token for each row until none is left
int64_t Scheduler::schedule_static() {
  if (running_.empty() && in_flight_.empty()) admit_static_batch();
  if (config_.recompute_everything) forget_computed_tokens();

  const auto has_output = [](const Sequence* sequence) {
    return sequence->num_output_tokens() + sequence->num_placeholders > 0;
  };
  const bool prompts_done = std::all_of(running_.begin(), running_.end(), has_output);
  int64_t budget = config_.batch.max_num_batched_tokens;
  for (Sequence* sequence : running_) {
    if (!prompts_done && has_output(sequence)) continue;
    if (config_.recompute_everything && sequence->num_placeholders > 0) continue;
    int64_t num_tokens = num_wanted_tokens(*sequence);
    if (num_tokens > budget) num_tokens = config_.enable_chunked_prefill ? budget : 0;
    if (num_tokens == 0) continue;
    plan(*sequence, num_tokens);
    budget -= num_tokens;
    if (config_.recompute_everything && sequence->num_uncomputed_tokens() == 0)
      start_over_.push_back(sequence->id);
  }

  if (plan_.empty()) return 0;
  const int64_t num_idle_rows = prompts_done ? num_batch_rows_ - std::ssize(plan_) : 0;
  const int64_t num_padding_rows = std::min(budget, num_idle_rows + num_prompt_padding_rows_);
  num_prompt_padding_rows_ -= std::max<int64_t>(num_padding_rows - num_idle_rows, 0);
  return num_padding_rows;
}

// What has its next token begins anew from the first one.
void Scheduler::forget_computed_tokens() {
  std::erase_if(start_over_, [this](SequenceId id) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) return true;
    if (found->second->num_placeholders > 0) return false;
    found->second->num_computed_tokens = 0;
    return true;
  });
}

void Scheduler::admit_static_batch() {
  int64_t longest = 0;
  int64_t sum = 0;
  while (!waiting_.empty() && std::ssize(running_) < config_.batch.max_num_seqs) {
    Sequence& sequence = *waiting_.next();
    if (!blocks_.append(sequence.block_table, sequence.num_prompt_tokens + *sequence.sampling.max_tokens - 1))
      break;
    waiting_.erase(&sequence);
    start_running(sequence);
    longest = std::max(longest, sequence.num_prompt_tokens);
    sum += sequence.num_prompt_tokens;
  }
  num_batch_rows_ = std::ssize(running_);
  num_prompt_padding_rows_ = num_batch_rows_ * longest - sum;
}
// <<< task 5.1

}  // namespace ladder

// Task 5.5: what a step's answer changes: tokens are appended, full blocks go to the prefix cache, sequences
// end, blocks come back. vLLM: Scheduler.update_from_output().
//
// The simple version, where no step is in flight while another one is planned:
//
//   for sequence, token in zip(step.scheduled, answer):
//     if token is not None: sequence.token_ids.append(token)
//     cache(sequence, sequence.num_computed_tokens)
//     if ends(token): running.remove(sequence); free(sequence.block_table)
//
// What each further line buys, with steps in flight:
//
//   kInvalidToken  logits that hold a NaN: the sequence ends with an error, nothing is appended
//   records        what was true when the step was planned: later steps have moved the sequence on since
//   finished()     a token that was sampled beyond a stop is dropped
//   epoch          a sequence that was preempted since has given up the blocks that this step wrote
//   deferred_      blocks of what has ended or was preempted come back when nothing writes them any more
//   lane           of two lanes each has its own oldest step, and its own blocks that wait for it
//   num_prompt_logprobs   after a preemption the first prompt positions come again, and are delivered once
#include <algorithm>

#include "step1_layers/core/error.h"
#include "step1_layers/sampling/invalid_token.h"
#include "step5_scheduler/scheduler.h"

namespace ladder {

// >>> task 5.5: apply the answer to the oldest step: append, cache, finish, free
std::vector<SequenceUpdate>& Scheduler::update(StepOutput step) {
  updates_.clear();
  const auto is_it = [&](const InFlightStep& one) { return one.step == step.step; };
  const auto position = std::find_if(in_flight_.begin(), in_flight_.end(), is_it);
  const StepPhase lane = position == in_flight_.end() ? StepPhase::any : position->lane;
  const bool is_oldest = std::none_of(in_flight_.begin(), position,
                                      [lane](const InFlightStep& one) { return one.lane == lane; });
  LADDER_CHECK(position != in_flight_.end() && is_oldest,
               "step {} was collected, but it is not the oldest one in flight", step.step);
  std::vector<InFlightSequence>& records = position->sequences;
  LADDER_CHECK(records.size() == step.sequences.size(), "step {} computed {} sequences, but answered for {}",
               step.step, records.size(), step.sequences.size());
  bool any_finished = false;
  for (size_t i = 0; i < records.size(); ++i) {
    apply(records[i], step.sequences[i]);
    any_finished |= records[i].sequence->finished();
  }
  if (any_finished) {
    std::erase_if(running_, [](const Sequence* sequence) { return sequence->finished(); });
    for (const InFlightSequence& record : records) forget_if_done(*record.sequence);
  }
  spare_records_ = std::move(records);
  in_flight_.erase(position);

  // Nothing that is still in flight writes these blocks.
  std::erase_if(deferred_, [&](DeferredBlocks& deferred) {
    if (deferred.step > step.step || deferred.lane != lane) return false;
    blocks_.free(deferred.block_table);
    return true;
  });
  return updates_;
}

void Scheduler::apply(InFlightSequence& record, SequenceStepOutput& answer) {
  Sequence& sequence = *record.sequence;
  LADDER_CHECK(answer.id == sequence.id && std::ssize(answer.token_ids) == (record.samples ? 1 : 0),
               "sequence {} should have been given {} tokens; {} came, for sequence {}", sequence.id,
               record.samples ? 1 : 0, answer.token_ids.size(), answer.id);
  --sequence.num_steps_in_flight;
  if (record.samples) --sequence.num_placeholders;
  if (sequence.finished()) return;  // sampled beyond a stop that was found in the meantime

  FinishReason reason = FinishReason::none;
  if (record.samples && answer.token_ids[0] == kInvalidToken) {
    // Its logits hold no numbers: there is nothing to append, and what was computed is not to be shared.
    reason = FinishReason::error;
    answer.token_ids.clear();
    answer.logprobs.clear();
  } else {
    if (record.samples) reason = append_token(sequence, answer.token_ids[0], config_.eos_token_ids);
    // Only what this step has computed is cached, not what a later one is going to.
    if (record.epoch == sequence.num_preemptions)
      blocks_.cache(sequence.prefix, sequence.tokens(), sequence.block_table, record.num_computed_after);
    if (connector_ != nullptr) tell_computed(record);
  }

  std::vector<PositionLogprobs>& prompt_logprobs = answer.prompt_logprobs;
  const int64_t delivered = std::clamp<int64_t>(sequence.num_prompt_logprobs - record.num_computed_before, 0,
                                                std::ssize(prompt_logprobs));
  prompt_logprobs.erase(prompt_logprobs.begin(), prompt_logprobs.begin() + delivered);
  sequence.num_prompt_logprobs += std::ssize(prompt_logprobs);

  if (!record.samples && prompt_logprobs.empty()) return;
  updates_.push_back({sequence.id, std::move(answer.token_ids), std::move(answer.logprobs),
                      std::move(prompt_logprobs), reason, sequence.stop_token_id, sequence.num_cached_tokens,
                      sequence.num_preemptions, nullptr});
  if (reason == FinishReason::none) return;
  finish(sequence, reason);
  if (const auto held = held_.find(sequence.id); held != held_.end())
    updates_.back().kv_transfer = held->second.answer;
}
// <<< task 5.5

}  // namespace ladder

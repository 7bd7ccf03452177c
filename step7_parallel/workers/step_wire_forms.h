#pragma once
// The wire form of what the scheduler sends the workers, and of what they answer: see step6_engine/process/wire.h. Every
// field is named, so that none which is added later is forgotten.
#include "step3_sequence/scheduler_output.h"
#include "step4_runner/executor.h"
#include "step6_engine/remote/engine_wire_forms.h"
#include "step7_parallel/workers/wire_table.h"

namespace ladder {

LADDER_WIRE_FORM(NewSequence) {
  auto& [id, prompt_of, token_ids, num_prompt_tokens, sampling, block_table, num_computed_tokens] = value;
  wire(id, prompt_of, token_ids, num_prompt_tokens, sampling, block_table, num_computed_tokens);
}
template <class T>
requires WireForm<T, ContinuedSequence>
auto columns_of(T& row) {
  auto& [id, new_block_ids, num_computed_tokens] = row;
  return std::tie(id, new_block_ids, num_computed_tokens);
}
template <class T>
requires WireForm<T, ScheduledSequence>
auto columns_of(T& row) {
  auto& [id, num_tokens, draft_token_ids] = row;
  return std::tie(id, num_tokens, draft_token_ids);
}
LADDER_WIRE_FORM(SchedulerOutput) {
  auto& [step, scheduled, new_sequences, continued, finished, preempted, total_num_tokens,
         num_static_padding_rows] = value;
  wire(step);
  wire_table(wire, scheduled);
  wire(new_sequences);
  wire_table(wire, continued);
  wire(finished, preempted, total_num_tokens, num_static_padding_rows);
}

LADDER_WIRE_FORM(KnownTokens) {
  auto& [step, token_ids] = value;
  wire(step, token_ids);
}

LADDER_WIRE_FORM(SequenceStepOutput) {
  auto& [id, token_ids, logprobs, prompt_logprobs] = value;
  wire(id, token_ids, logprobs, prompt_logprobs);
}
LADDER_WIRE_FORM(StepOutput) {
  auto& [step, sequences, execute_seconds, prepare_seconds, forward_seconds, sample_seconds,
         communicate_seconds, stage_wait_seconds] = value;
  wire(step, sequences, execute_seconds, prepare_seconds, forward_seconds, sample_seconds,
       communicate_seconds, stage_wait_seconds);
}

}  // namespace ladder

// Task 8.7.lanes: prompts and answers in steps of their own, which are in flight at the same time (SchedulerConfig::phase_lanes).
//
//   waiting --admit()--> prefill lane: chunk, chunk, last chunk --collected--> decode lane: token, token, ...
//      ^                                                                         |
//      +------------------------------ preempted: all is computed again ---------+
//
// A sequence is in one lane at a time, and changes it only when nothing of it is in flight. All else follows from that:
//
//   no decode step reads what a prefill step still writes    its prompt was collected before it is planned
//   blocks come back as ever                                 the last step that writes them is in one lane, whose steps are
//                                                            collected in their order (deferred_)
//   placeholders are filled in by one runner                 the token that a step lacks was sampled in the same lane
//   shared blocks need no more care                          a sibling that shares what is planned is in the prefill lane, behind
//                                                            it or beside it; the prefix index holds what was collected
//
// For the runner of a lane a sequence that leaves has finished, and one that comes is new, with all of its tokens, as after a
// preemption: penalties, seeds and log probabilities are functions of these. SGLang: PD multiplexing (multiplex/).
//
// Two steps beside each other read the weights twice, and each has a part of the device. Where more prompts wait than that
// can bear, both phases may be mixed: the prefill lane then computes all of it, in chunks beside the answers, as without lanes.
// Whoever changes the lane for it does so by the rules above.
#include <algorithm>
#include <utility>

#include "step5_scheduler/scheduler.h"

namespace ladder {

void Scheduler::mix_phases(bool mix) {
  wants_mixed_ = mix && config_.phase_lanes && config_.enable_chunked_prefill;
  mixes_ &= mix;
}

bool Scheduler::begin_lane(StepPhase lane) {
  lane_ = phase_ = lane;
  num_step_tokens_ = config_.batch.max_num_batched_tokens;
  if (!wants_mixed_) return true;
  const auto is_prefill = [](const InFlightStep& step) { return step.lane == StepPhase::prefill; };
  mixes_ = mixes_ || std::ranges::none_of(in_flight_, is_prefill);
  if (!mixes_) return lane == StepPhase::decode;
  if (lane == StepPhase::decode) return false;
  phase_ = StepPhase::any;
  const auto is_answered = [](const Sequence* sequence) {
    return sequence->num_computed_tokens >= sequence->num_prompt_tokens;
  };
  if (std::ranges::any_of(running_, is_answered))
    num_step_tokens_ = std::min(
        num_step_tokens_, std::max(config_.num_mixed_step_tokens, 2 * static_cast<int64_t>(running_.size())));
  return true;
}

bool Scheduler::is_of_phase(const Sequence& sequence, int64_t num_wanted) const {
  if (lane_ == StepPhase::any) return true;
  if (sequence.num_steps_in_flight > 0 && sequence.lane != lane_) return false;
  if (phase_ == StepPhase::any) return true;
  const bool decodes = num_wanted == 1 && sequence.num_computed_tokens >= sequence.num_prompt_tokens;
  return decodes == (phase_ == StepPhase::decode);
}

void Scheduler::enter_lane(Sequence& sequence) {
  const StepPhase left = std::exchange(sequence.lane, lane_);
  if (left == lane_ || sequence.num_known_blocks == 0) return;
  ids_of(finished_ids_, left).push_back(sequence.id);
  sequence.num_known_blocks = 0;
}

}  // namespace ladder

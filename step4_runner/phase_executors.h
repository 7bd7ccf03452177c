#pragma once
// An executor for each of two phases, over one model and one KV cache (step 8, 8.7.lanes): a step of the one is computed
// while steps of the other are.
//
//   prefill   [ step 0                            ][ step 4            ...
//   decode    [ step 1 ][ step 2 ][ step 3 ][ step 5 ][ step 6 ]       ...
//
// What makes that safe is the scheduler's: no step reads or writes blocks that a step in flight of the other lane writes.
#include <cstdint>

#include "step3_sequence/step_phase.h"
#include "step4_runner/executor.h"

namespace ladder {

class PhaseExecutors {
 public:
  virtual ~PhaseExecutors() = default;
  // prefill or decode. Each has its own tickets and its own steps in flight, and knows the sequences of its steps alone.
  virtual Executor& of(StepPhase phase) = 0;
  // Waits until the oldest step in flight of either is done, or has failed, so that collect() of that one waits no more: which
  // one. If both are, the one that was first: neither can keep the other from being collected. Some step must be in flight.
  virtual StepPhase wait() = 0;
  // A prefill step was submitted, and prompts of so many tokens wait that are in no step yet and could be: how pressing prefill
  // steps are. True: so much that from the next step on one lane should compute both phases (Scheduler::mix_phases()).
  virtual bool on_waiting(int64_t /*num_tokens*/) { return false; }
};

}  // namespace ladder

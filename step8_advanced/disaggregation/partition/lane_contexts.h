#pragma once
// On which streams of a device the steps of two lanes run (phase_executors.h), and who hears how long they took.
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "step1_layers/core/context.h"
#include "step2_model/model.h"
#include "step3_sequence/scheduler_output.h"
#include "step3_sequence/step_phase.h"
#include "step4_runner/runner_config.h"

namespace ladder {

// Its functions are called by several threads, choose() and on_done() at once.
class LaneContexts {
 public:
  // Seconds of the device for a step in one of the lane's contexts (ModelRunner::measure_step). On any thread.
  using MeasureStep = std::function<double(StepPhase phase, size_t context, int64_t num_seqs,
                                           int64_t num_tokens, int64_t num_computed_tokens)>;

  virtual ~LaneContexts() = default;  // after the runners
  // What the lane's runner is made with, and after it what else its steps may run on. The object keeps what they point to.
  virtual std::vector<OpContext> make(StepPhase phase) = 0;
  // Both runners are warmed up, and nothing runs beside what is measured here. `config` is the prefill lane's.
  virtual void calibrate(const Model& /*model*/, const RunnerConfig& /*config*/,
                         const MeasureStep& /*measure*/) {}
  // Which of the lane's contexts the step runs on. Steps of both lanes come in the order in which they are submitted.
  virtual size_t choose(StepPhase /*phase*/, const SchedulerOutput& /*step*/) { return 0; }
  // PhaseExecutors::on_waiting().
  virtual bool on_waiting(int64_t /*num_tokens*/) { return false; }
  // The lane's oldest step is done, `seconds` after it began.
  virtual void on_done(StepPhase /*phase*/, double /*seconds*/) {}
};

// One context of the device for each lane: a GPU's streams take turns as their blocks come.
std::unique_ptr<LaneContexts> make_plain_lane_contexts(Device device);

}  // namespace ladder

#pragma once
// Who watches an engine: the recorder of trace/. The engine calls its observers on its own thread, so what they do is
// part of the step; without one it costs a look at an empty list.
#include "step3_sequence/scheduler_output.h"

namespace ladder {

class Engine;
struct StepResult;

class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  // The step is planned, its blocks are held, and it is about to be submitted. Must not throw.
  virtual void on_submit(const Engine& engine, const SchedulerOutput& step) = 0;
  // These results leave the engine: of a step where metrics.num_running is above 0, of requests that ended without
  // one otherwise. Must not throw.
  virtual void on_results(const Engine& engine, const StepResult& results) = 0;
};

}  // namespace ladder

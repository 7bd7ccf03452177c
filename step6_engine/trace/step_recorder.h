#pragma once
// Watches an engine and makes a TraceRecord of each of its steps. On the engine's thread.
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "step6_engine/engine.h"
#include "step6_engine/engine_observer.h"
#include "step6_engine/trace/trace_record.h"

namespace ladder {

// Of a recording that begins now.
TraceHeader trace_header(const Engine& engine);

class StepRecorder final : public EngineObserver {
 public:
  using Sink = std::function<void(
      const TraceRecord&)>;               // gets each record as soon as it, and all before it, is complete
  using Clock = std::function<double()>;  // as the engine's: seconds on a steady clock

  // The sink first gets a restart record: the engine as it is. Steps that are in flight now are not recorded.
  StepRecorder(const Engine& engine, Sink sink, Clock clock = steady_seconds);

  void on_submit(const Engine& engine, const SchedulerOutput& step) override;
  void on_results(const Engine& engine, const StepResult& results) override;

  static double steady_seconds();

 private:
  using Name = std::pair<RequestId, int64_t>;  // request and completion

  // Whose sequence it is, into record.arrived, where that was not told before.
  void tell(const Engine& engine, SequenceId id, TraceRecord& record);

  const Sink sink_;
  const Clock clock_;
  const double start_;
  BlockDiff blocks_;
  std::map<Name, SequenceId> living_;  // told, and not ended
  std::set<SequenceId> told_;          // the same
  struct Submitted {
    TraceRecord record;
    bool is_done = false;
  };
  std::deque<Submitted> in_flight_;  // in the order of submission; done ones wait for those before them
  std::vector<TraceEnd> ended_;      // not in a record yet
};

}  // namespace ladder

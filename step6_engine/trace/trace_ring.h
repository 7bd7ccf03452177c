#pragma once
// The latest records of an engine, in memory, for who watches it live. Nothing is recorded while nobody does.
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "step6_engine/engine_client.h"
#include "step6_engine/engine_observer.h"
#include "step6_engine/trace/step_recorder.h"
#include "step6_engine/trace/trace_state.h"

namespace ladder {

struct TraceRingLimits {
  int64_t max_records = 4096;
  int64_t max_entries = int64_t{1} << 20;      // of all lists in all records: some tens of MB
  int64_t max_slice_bytes = int64_t{1} << 20;  // a slice is no longer, but for the record that reaches it
  double watch_seconds = 5.0;                  // for so long after the last since() it goes on recording
};

class TraceRing final : public EngineObserver {
 public:
  explicit TraceRing(TraceHeader header, TraceRingLimits limits = {});

  // On the engine's thread. Where nobody watches: a look at one number.
  void on_submit(const Engine& engine, const SchedulerOutput& step) override;
  void on_results(const Engine& engine, const StepResult& results) override;
  // The same for an engine at rest, which has no steps: begins the recording, so that its blocks are seen at once.
  void look(const Engine& engine);

  // Any thread. EngineClient::trace_since(). `was_watched`: false where the recording has yet to begin.
  TraceSlice since(int64_t position, int64_t max_records, bool* was_watched = nullptr);

 private:
  // Whether somebody watches; begins and ends the recording accordingly.
  bool follow(const Engine& engine);
  void push(const TraceRecord& record);
  void drop_first();

  const TraceRingLimits limits_;
  std::atomic<double> watched_until_ = 0.0;  // 0: nobody
  std::optional<StepRecorder> recorder_;     // the engine's thread alone

  std::mutex mutex_;  // what follows
  TraceHeader header_;
  std::deque<std::shared_ptr<const TraceRecord>> records_;
  int64_t first_ = 1;  // position of records_[0]; positions are never used twice
  int64_t num_entries_ = 0;
  TraceState before_;  // what was before records_[0]
};

}  // namespace ladder

// When what is noted, with two steps in flight:
//
//   on_submit(0)  on_submit(1)  on_results(0)  on_submit(2)  on_results(1) ...
//   record 0: what is planned   record 0: times, ends -> sink
//
// A record's blocks are as of its on_submit(), so the records in their order tell one story of the table, however many
// steps are in flight. Of two lanes steps end in another order: a record waits for those before it.
#include "step6_engine/trace/step_recorder.h"

#include <algorithm>
#include <chrono>

namespace ladder {

namespace {

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

TraceHeader trace_header(const Engine& engine) {
  const BatchConfig& batch = engine.scheduler().config().batch;
  return {batch.num_kv_blocks, batch.block_size, batch.max_num_seqs, batch.max_num_batched_tokens,
          unix_seconds()};
}

double StepRecorder::steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

StepRecorder::StepRecorder(const Engine& engine, Sink sink, Clock clock)
    : sink_(std::move(sink)),
      clock_(std::move(clock)),
      start_(clock_()),
      blocks_(engine.scheduler().blocks().num_blocks()) {
  TraceRecord record;
  record.restart = true;
  blocks_.look(engine.scheduler().blocks());
  record.blocks = blocks_.take_all();
  for (const SequenceId id : engine.scheduler().waiting_ids(kTraceQueue)) tell(engine, id, record);
  sink_(record);
}

void StepRecorder::tell(const Engine& engine, SequenceId id, TraceRecord& record) {
  if (told_.contains(id)) return;
  const std::optional<Engine::Owner> owner = engine.find_owner(id);
  const Sequence* sequence = engine.scheduler().find(id);
  if (!owner || sequence == nullptr) return;  // aborted since
  told_.insert(id);
  living_.emplace(Name(owner->request_id, owner->completion), id);
  record.arrived.push_back(
      {id, owner->request_id, owner->completion, sequence->num_prompt_tokens, owner->arrival - start_});
}

void StepRecorder::on_submit(const Engine& engine, const SchedulerOutput& step) {
  const Scheduler& scheduler = engine.scheduler();
  TraceRecord& record = in_flight_.emplace_back().record;
  record.step = step.step;
  record.queue = scheduler.waiting_ids(kTraceQueue);
  record.num_waiting = scheduler.num_waiting();
  record.preempted = step.preempted;
  for (const SequenceId id : record.queue) tell(engine, id, record);

  // Those that are new to the runner and those that go on, each in the order of `scheduled`.
  auto added = step.new_sequences.begin();
  auto continued = step.continued.begin();
  for (const ScheduledSequence& scheduled : step.scheduled) {
    tell(engine, scheduled.id, record);
    int64_t num_computed = 0;
    if (added != step.new_sequences.end() && added->id == scheduled.id) {
      num_computed = added++->num_computed_tokens;
      record.admitted.push_back({scheduled.id, num_computed});
    } else {
      num_computed = continued++->num_computed_tokens;
    }
    const Sequence& sequence = *scheduler.find(scheduled.id);  // it was planned a moment ago
    const bool decodes = scheduled.num_tokens == 1 && num_computed >= sequence.num_prompt_tokens;
    record.batch.push_back({scheduled.id, decodes ? TracePhase::decode : TracePhase::prefill,
                            scheduled.num_tokens, num_computed});
  }
  blocks_.look(scheduler.blocks());
  record.blocks = blocks_.take();
}

void StepRecorder::on_results(const Engine& engine, const StepResult& results) {
  int64_t num_new_tokens = 0;
  for (const CompletionUpdate& update : results.updates) {
    num_new_tokens += std::ssize(update.token_ids);
    if (update.finish_reason == FinishReason::none) continue;
    const auto found = living_.find(Name(update.request_id, update.completion));
    if (found == living_.end()) continue;
    ended_.push_back({found->second, update.finish_reason});
    told_.erase(found->second);
    living_.erase(found);
  }
  blocks_.look(engine.scheduler().blocks());

  // A step that was submitted before the recording began has no record.
  const StepMetrics& metrics = results.metrics;
  const double now = clock_() - start_;
  const auto submitted = std::find_if(in_flight_.begin(), in_flight_.end(), [&](const Submitted& one) {
    return one.record.step == metrics.step && !one.is_done;
  });
  if (metrics.num_running > 0 && submitted != in_flight_.end()) {
    submitted->is_done = true;
    TraceRecord& record = submitted->record;
    record.begin = std::max(0.0, now - metrics.seconds);
    record.seconds = metrics.seconds;
    record.execute_seconds = metrics.execute_seconds;
    record.num_new_tokens = num_new_tokens;
    record.ended.swap(ended_);
  }
  for (; !in_flight_.empty() && in_flight_.front().is_done; in_flight_.pop_front())
    sink_(in_flight_.front().record);
  if (engine.num_steps_in_flight() > 0) return;
  in_flight_.clear();  // a dead engine collects no more
  if (engine.has_unfinished()) return;
  TraceRecord rest;  // at rest: what the last step gave back
  rest.begin = now;
  rest.blocks = blocks_.take();
  rest.ended.swap(ended_);
  if (!rest.blocks.empty() || !rest.ended.empty()) sink_(rest);
}

}  // namespace ladder

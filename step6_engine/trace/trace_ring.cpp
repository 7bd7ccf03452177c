#include "step6_engine/trace/trace_ring.h"

#include <algorithm>
#include <vector>

#include "step6_engine/trace/trace_json.h"

namespace ladder {

namespace {

// What a record weighs.
int64_t num_entries(const TraceRecord& record) {
  return std::ssize(record.arrived) + std::ssize(record.admitted) + std::ssize(record.batch) +
         std::ssize(record.queue) + std::ssize(record.preempted) + std::ssize(record.ended) +
         std::ssize(record.blocks.runs) + std::ssize(record.blocks.evicted);
}

}  // namespace

TraceRing::TraceRing(TraceHeader header, TraceRingLimits limits)
    : limits_(limits), header_(header), before_(header.num_blocks) {}

void TraceRing::on_submit(const Engine& engine, const SchedulerOutput& step) {
  if (follow(engine)) recorder_->on_submit(engine, step);
}

void TraceRing::on_results(const Engine& engine, const StepResult& results) {
  if (follow(engine)) recorder_->on_results(engine, results);
}

void TraceRing::look(const Engine& engine) {
  follow(engine);
}

bool TraceRing::follow(const Engine& engine) {
  double until = watched_until_.load(std::memory_order_relaxed);
  if (until == 0.0 && !recorder_) return false;
  if (until > 0.0 && StepRecorder::steady_seconds() > until &&
      watched_until_.compare_exchange_strong(until, 0.0))
    until = 0.0;
  if (until > 0.0) {
    if (!recorder_) {
      {
        std::lock_guard lock(mutex_);
        header_ = trace_header(engine);
      }
      recorder_.emplace(engine, [this](const TraceRecord& record) { push(record); });
    }
    return true;
  }
  recorder_.reset();
  std::lock_guard lock(mutex_);
  while (!records_.empty()) drop_first();
  return false;
}

void TraceRing::push(const TraceRecord& record) {
  auto kept = std::make_shared<const TraceRecord>(record);
  std::lock_guard lock(mutex_);
  records_.push_back(std::move(kept));
  num_entries_ += num_entries(record);
  while (std::ssize(records_) > 1 &&
         (std::ssize(records_) > limits_.max_records || num_entries_ > limits_.max_entries))
    drop_first();
}

void TraceRing::drop_first() {
  before_.apply(*records_.front());
  num_entries_ -= num_entries(*records_.front());
  records_.pop_front();
  ++first_;
}

TraceSlice TraceRing::since(int64_t position, int64_t max_records, bool* was_watched) {
  const double until = StepRecorder::steady_seconds() + limits_.watch_seconds;
  const double before = watched_until_.exchange(until, std::memory_order_relaxed);
  if (was_watched != nullptr) *was_watched = before > 0.0;

  TraceSlice slice;
  TraceHeader header;
  std::optional<TraceRecord> restart;
  std::vector<std::shared_ptr<const TraceRecord>> records;
  {
    std::lock_guard lock(mutex_);
    const int64_t end = first_ + std::ssize(records_);
    // The one who is up to date when the recording ends and begins anew goes on as well: with a restart record.
    const bool goes_on = position >= first_ && position <= end;
    if (!goes_on) {
      position = first_;
      if (!records_.empty() && !records_.front()->restart) restart = before_.as_record();
      slice.restarted = true;
    }
    header = header_;
    const int64_t count = std::clamp<int64_t>(max_records, 0, end - position);
    const auto begin = records_.begin() + (position - first_);
    records.assign(begin, begin + count);
  }
  if (slice.restarted) slice.lines.push_back(trace_json(header));
  if (restart) slice.lines.push_back(trace_json(*restart));
  slice.next = position;
  int64_t num_bytes = 0;
  for (const auto& record : records) {
    if (num_bytes >= limits_.max_slice_bytes) break;
    slice.lines.push_back(trace_json(*record));
    num_bytes += std::ssize(slice.lines.back());
    ++slice.next;
  }
  return slice;
}

}  // namespace ladder

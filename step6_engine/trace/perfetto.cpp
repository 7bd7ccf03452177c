#include "step6_engine/trace/perfetto.h"

#include <fmt/format.h>

#include <algorithm>

#include "step2_model/json.h"

namespace ladder {

namespace {

constexpr int kEngine = 1, kRequests = 2;  // process ids

std::string quoted(std::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', true, Json::error_handler_t::replace);
}

double microseconds(double seconds) {
  return std::max(0.0, seconds) * 1e6;
}

std::string slice(int process, int64_t track, std::string_view name, double begin, double end,
                  std::string_view arguments) {
  return fmt::format(R"({{"ph":"X","pid":{},"tid":{},"name":{},"ts":{:.3f},"dur":{:.3f},"args":{{{}}}}})",
                     process, track, quoted(name), microseconds(begin),
                     std::max(0.0, microseconds(end) - microseconds(begin)), arguments);
}

std::string counter(std::string_view name, double at, std::string_view values) {
  return fmt::format(R"({{"ph":"C","pid":{},"name":{},"ts":{:.3f},"args":{{{}}}}})", kEngine, quoted(name),
                     microseconds(at), values);
}

std::string label(std::string_view kind, int process, int64_t track, std::string_view name) {
  return fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{"name":{}}}}})", process, track,
                     kind, quoted(name));
}

}  // namespace

PerfettoWriter::PerfettoWriter(const TraceHeader& header, Write write)
    : write_(std::move(write)), state_(header.num_blocks) {
  write_("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
  event(label("process_name", kEngine, 0, "engine"));
  event(label("process_name", kRequests, 0, "requests"));
  event(label("thread_name", kEngine, 0, "steps"));
}

void PerfettoWriter::event(std::string text) {
  write_(separator_ + text);
  separator_ = ",\n";
}

void PerfettoWriter::close(SequenceId id, double until) {
  const auto found = tracks_.find(id);
  if (found == tracks_.end() || found->second.phase.empty()) return;
  event(slice(kRequests, id + 1, found->second.phase, found->second.since, until, ""));
  found->second.phase.clear();
}

void PerfettoWriter::begin(SequenceId id, std::string phase, double at) {
  Track& track = tracks_[id];
  if (track.phase == phase) return;
  close(id, at);
  track.phase = std::move(phase);
  track.since = at;
}

void PerfettoWriter::add(const TraceRecord& record) {
  if (record.restart) {
    for (const auto& [id, track] : tracks_) close(id, last_);
    tracks_.clear();
  }
  state_.apply(record);
  const double end = record.begin + record.seconds;
  last_ = std::max(last_, end);
  for (const TraceSequence& sequence : record.arrived) {
    event(label("thread_name", kRequests, sequence.id + 1,
                fmt::format("{} [{}], {} prompt tokens", sequence.request_id, sequence.completion,
                            sequence.num_prompt_tokens)));
    begin(sequence.id, "queue", sequence.arrival);
  }
  for (const SequenceId id : record.preempted) begin(id, "preempted", record.begin);

  int64_t num_prefill = 0;
  for (const TraceWork& work : record.batch) {
    if (work.phase == TracePhase::prefill) num_prefill += work.num_tokens;
    // One that has ended may be in a step that was in flight: its track stays closed.
    const auto track = tracks_.find(work.id);
    if (track != tracks_.end() && !track->second.phase.empty())
      begin(work.id, work.phase == TracePhase::prefill ? "prefill" : "decode", record.begin);
  }
  if (record.step >= 0) {
    const int64_t num_tokens = num_batch_tokens(record);
    event(slice(
        kEngine, 0, fmt::format("step {}", record.step), record.begin, end,
        fmt::format(
            R"("sequences":{},"prefill tokens":{},"decode tokens":{},"new tokens":{},"executor ms":{:.3f})",
            record.batch.size(), num_prefill, num_tokens - num_prefill, record.num_new_tokens,
            record.execute_seconds * 1e3)));
    event(counter("sequences", record.begin,
                  fmt::format(R"("running":{},"waiting":{})", record.batch.size(), record.num_waiting)));
    if (record.seconds > 0.0)
      event(counter(
          "tokens/s", record.begin,
          fmt::format(R"("new":{:.1f})", static_cast<double>(record.num_new_tokens) / record.seconds)));
  }
  if (record.step < 0 && !record.restart) {
    event(counter("sequences", record.begin, R"("running":0,"waiting":0)"));
    event(counter("tokens/s", record.begin, R"("new":0)"));
  }
  event(counter(
      "KV blocks", record.begin,
      fmt::format(R"("held":{},"shared":{},"cached":{})", state_.num_blocks_of(BlockState::held),
                  state_.num_blocks_of(BlockState::shared), state_.num_blocks_of(BlockState::cached))));
  for (const TraceEnd& ended : record.ended) {
    close(ended.id, end);
    event(fmt::format(R"({{"ph":"i","s":"t","pid":{},"tid":{},"name":"{}","ts":{:.3f}}})", kRequests,
                      ended.id + 1, finish_reason_name(ended.reason), microseconds(end)));
    tracks_.erase(ended.id);
  }
}

void PerfettoWriter::finish() {
  for (const auto& [id, track] : tracks_) close(id, last_);
  write_("\n]}\n");
}

}  // namespace ladder

#pragma once
// A trace for ui.perfetto.dev (or chrome://tracing): Chrome's trace event format, JSON.
//
//   process "engine"     a slice per step; counters: sequences running and waiting, KV blocks by state, tokens/s
//   process "requests"   a track per completion: slices queue, prefill, decode, preempted, and an instant at the end
//
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "step6_engine/trace/trace_state.h"

namespace ladder {

class PerfettoWriter {
 public:
  using Write = std::function<void(std::string_view)>;
  PerfettoWriter(const TraceHeader& header, Write write);

  void add(const TraceRecord& record);
  void finish();  // what is still going on ends with the last record

 private:
  struct Track {
    std::string phase;  // the slice that is open
    double since = 0.0;
  };
  void event(std::string text);
  void close(SequenceId id, double until);
  void begin(SequenceId id, std::string phase, double at);  // closes the one before

  const Write write_;
  TraceState state_;
  std::map<SequenceId, Track> tracks_;
  std::string separator_;
  double last_ = 0.0;
};

}  // namespace ladder

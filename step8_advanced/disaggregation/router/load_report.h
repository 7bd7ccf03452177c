#pragma once
// What a server says of its load under GET /metrics: ours and vLLM's, whose names are the same behind their prefixes.
#include <cstdint>
#include <string_view>

namespace ladder {

struct LoadReport {
  int num_engines = 0;                       // that report
  int64_t num_running = 0, num_waiting = 0;  // of all its engines
  double kv_usage = 0;                       // of its fullest engine, 0 .. 1
};

// What is not there, or is no number, is 0.
LoadReport read_load_report(std::string_view metrics);

}  // namespace ladder

#pragma once
// One run of a workload, measured; the table a person reads and the JSON file that is kept.
#include <cstdint>
#include <string>
#include <vector>

#include "step6_engine/engine.h"

namespace ladder {

struct Measurement {
  std::string name;
  double seconds = 0.0;  // from the first request to the last token
  EngineMetrics engine;
  std::vector<double> time_to_first_token;  // per request
  std::vector<double> inter_token_latency;  // per request: the mean over its gaps
  double inter_token_latency_max = 0.0;     // the longest gap of any request

  double output_tokens_per_second() const;
  double total_tokens_per_second() const;  // prompt and output
};

// Adds all requests at once and runs them to the end, under a bar with that name. Error: a request is longer
// than the longest sequence, or does not fit the cache.
Measurement measure(Engine& engine, const std::vector<Request>& requests, const std::string& name);

// {"command", "commit", "cpu", "isa", "threads", "results": [...]}, to be compared later. commit is null
// where the program does not lie in a git checkout. No file name: nothing. Error: the file cannot be written.
void write_report(const std::string& file, const std::vector<Measurement>& results, int threads);

// The same error before anything long is run.
void check_report_file(const std::string& file);

double mean(const std::vector<double>& values);  // 0 for no values

// The command that this process was started with, quoted for a shell.
std::string command_of_this_process();

}  // namespace ladder

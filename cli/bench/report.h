#pragma once
// One run of a workload, measured, and the JSON file that is kept.
#include <cstdint>
#include <string>
#include <vector>

#include "cli/bench/session_load.h"
#include "step1_layers/core/device.h"
#include "step2_model/json.h"
#include "step6_engine/engine.h"
#include "step6_engine/engine_client.h"

namespace ladder {

struct Measurement {
  std::string name;
  double seconds = 0.0;  // from the first request to the last token
  EngineMetrics engine;
  std::vector<double> time_to_first_token;  // per request
  std::vector<double> inter_token_latency;  // per request: the mean over its gaps
  double inter_token_latency_max = 0.0;     // the longest gap of any request
  double of_streaming_limit = 0.0;          // streaming_limit.h; 0: not known
  double touched_experts = 0.0;  // of a layer, mean over its calls (touched_experts.h); 0: not counted

  double output_tokens_per_second() const;
  double total_tokens_per_second() const;  // prompt and output
  void add_latencies(const RequestMetrics& request);
};

// Adds all requests at once and runs them to the end, under a bar with that name. Error: a request is longer
// than the longest sequence, or does not fit the cache.
Measurement measure(Engine& engine, const std::vector<Request>& requests, const std::string& name);

// The same of several engines behind a client. What is counted is their sum, as far as outputs tell it, and their peaks.
Measurement measure(EngineClient& client, const std::vector<Request>& requests, const std::string& name);

// The same of conversations; a request is a turn.
Measurement measure(EngineClient& client, const SessionLoad& load, const std::string& name);

// Where it was measured.
struct BenchMachine {
  Device device;
  int threads = 1;
  double copy_bandwidth = 0.0;  // of a GPU, bytes per second
};

// {"command", "commit", "cpu", "isa", "threads", "gpu", "copy_bandwidth", "results": [...]}, to be compared
// later. commit is null where the program does not lie in a git checkout and LADDER_COMMIT names none, gpu
// and copy_bandwidth where it ran on the CPU. No file name: nothing. Error: the file cannot be written.
void write_report(const std::string& file, const std::vector<Measurement>& results,
                  const BenchMachine& machine);
void write_report(const std::string& file, Json results, const BenchMachine& machine);

// The same error before anything long is run.
void check_report_file(const std::string& file);

double mean(const std::vector<double>& values);  // 0 for no values

// The command that this process was started with, quoted for a shell.
std::string command_of_this_process();

}  // namespace ladder

#pragma once
// Measured steps of engines, in a JSON file: what a plan is made from.
//
//   {"model": "tinyworld", "device": "2 threads of ...", "command": "ladder plan --measure ...",
//    "kv_bytes_per_token": 8192, "num_layers": 8,
//    "engines": [{"tensor_parallel_size": 1, "kv_tokens": 65536, "max_num_seqs": 64,
//                 "steps": [{"steps": 1, "sequences": 1, "prompt_tokens": 511, "kv_tokens": 0, "prompt_pairs": 130816,
//                            "seconds": 0.021, "source": "..."}]}]}
//
// A row is one step, or the sums over several (`steps`), whose work is StepWork's. `source` may say where it is from.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "step7_parallel/data/simulation/step_time_model.h"

namespace ladder {

struct MeasuredSteps {
  int64_t num_steps = 1;
  StepWork work;
  double seconds = 0;
  std::string source;
};

struct MeasuredEngine {
  int tensor_parallel_size = 1;
  int64_t num_kv_tokens = 0;  // that its cache holds
  int64_t max_num_seqs = 0;
  std::vector<MeasuredSteps> steps;
};

struct StepTimes {
  std::string model, device, command;
  int64_t kv_bytes_per_token = 0;  // of all layers and ranks
  int64_t num_layers = 0;
  std::vector<MeasuredEngine> engines;  // each size once
};

// Error naming the file and the field.
StepTimes load_step_times(const std::filesystem::path& file);
// Error: the file cannot be written.
void save_step_times(const std::filesystem::path& file, const StepTimes& times);

// Task 8.7.planner, given: the model of step times that fits best.
struct FittedSteps {
  StepTimeModel model;
  double mean_error = 0, worst_error = 0;  // of a row: |model - measured| / measured
};
// Least squares of the relative error, no price below 0 (a step does not get shorter by more work). Error: no row.
FittedSteps fit_step_times(const std::vector<MeasuredSteps>& steps);

}  // namespace ladder

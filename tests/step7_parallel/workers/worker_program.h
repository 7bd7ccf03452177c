#pragma once
// The workers of tests (program/worker_ranks.cpp), and an engine over them.
#include <string>

#include "step7_parallel/pipeline/split_layers.h"
#include "step7_parallel/workers/worker_executor.h"
#include "tests/step6_engine/engine_runs.h"

namespace ladder::testing {

// `model` is what the workers load; `fault` is what happens in one of them (program/worker_ranks.cpp).
inline WorkerProgram worker_program(const std::filesystem::path& model, const std::string& fault = "none") {
  return {.arguments = {model.string(), fault}, .program = WORKER_RANKS};
}

struct Grid {
  int tp = 1, pp = 1;
};

inline EngineOptions on_grid(EngineOptions options, Grid grid) {
  options.runner.tensor_parallel_size = grid.tp;
  options.runner.pipeline_parallel_size = grid.pp;
  options.makers.split_layers = split_layers;
  return options;
}

inline EngineOptions on_workers(EngineOptions options, const std::string& fault = "none") {
  options.makers.executor = make_worker_executor(worker_program(options.model, fault));
  return options;
}

}  // namespace ladder::testing

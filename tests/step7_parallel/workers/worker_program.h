#pragma once
// The workers of tests (program/worker_ranks.cpp), and an engine over them.
#include <string>

#include "step7_parallel/workers/worker_executor.h"
#include "tests/step7_parallel/engine_on_grid.h"

namespace ladder::testing {

// `model` is what the workers load; `fault` is what happens in one of them, `experts` says which they have
// (program/worker_ranks.cpp).
inline WorkerProgram worker_program(const std::filesystem::path& model, const std::string& fault = "none",
                                    int context_ranks = 1, const std::string& experts = "all") {
  return {.arguments = {model.string(), fault, std::to_string(context_ranks), experts},
          .program = WORKER_RANKS};
}

inline EngineOptions on_workers(EngineOptions options, const std::string& fault = "none") {
  options.makers.executor = make_worker_executor(
      worker_program(options.model, fault, options.runner.prefill_context_parallel_size));
  return options;
}

}  // namespace ladder::testing

#pragma once
// The workers of tests (program/worker_ranks.cpp), and an engine over them.
#include <string>

#include "step7_parallel/workers/worker_executor.h"
#include "tests/step7_parallel/engine_on_grid.h"

namespace ladder::testing {

// `model` is what the workers load; `fault` is what happens in one of them, `experts` says which they have, and `context` who
// shares out a step's rows or a head's keys (program/worker_ranks.cpp).
inline WorkerProgram worker_program(const std::filesystem::path& model, const std::string& fault = "none",
                                    const std::string& context = "1 1 1",
                                    const std::string& experts = "all") {
  return {.arguments = {model.string(), fault, context, experts}, .program = WORKER_RANKS};
}

inline EngineOptions on_workers(EngineOptions options, const std::string& fault = "none") {
  const RunnerConfig& runner = options.runner;
  options.makers.executor = make_worker_executor(
      worker_program(options.model, fault,
                     fmt::format("{} {} {}", runner.prefill_context_parallel_size,
                                 runner.decode_context_parallel_size, runner.kv_interleave_size)));
  return options;
}

}  // namespace ladder::testing

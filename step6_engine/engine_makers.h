#pragma once
// What load_engine() puts together, as functions that the program may replace. A later step that brings
// another executor (worker processes, a pipeline) or other parts of a model (a quantized format) hands in a
// function here, so that no step names a later one.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "step2_model/decoder/decoder_spec.h"
#include "step2_model/model_makers.h"
#include "step4_runner/executor.h"
#include "step4_runner/runner_config.h"

namespace ladder {

struct ExecutorOptions {
  std::filesystem::path model;
  ModelMakers model_makers;
  DecoderSpec spec;
  RunnerConfig config;                                        // resolved
  std::function<void(int64_t done, int64_t total)> progress;  // bytes of weights loaded; may be empty
};

struct MadeExecutor {
  std::unique_ptr<Executor> executor;
  BatchConfig batch;  // with the KV blocks that there are: what the scheduler plans with
};

using ExecutorMaker = std::function<MadeExecutor(const ExecutorOptions&)>;

MadeExecutor make_executor_in_process(const ExecutorOptions& options);  // LocalExecutor, step 4

struct EngineMakers {
  ModelMakers model;  // step2_model/model_makers.h
  ExecutorMaker executor = make_executor_in_process;
};

}  // namespace ladder

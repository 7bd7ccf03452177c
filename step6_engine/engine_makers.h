#pragma once
// What load_engine() puts together, as functions that the program may replace. A later step that brings
// another executor (worker processes, a pipeline), other parts of a model (a quantized format), a grammar or a
// proposer of drafts hands in a function here, so that no step names a later one.
#include <functional>
#include <memory>
#include <vector>

#include "step2_model/model_makers.h"
#include "step4_runner/executor.h"
#include "step4_runner/executor_options.h"

namespace ladder {

struct MadeExecutor {
  std::unique_ptr<Executor> executor;
  BatchConfig batch;  // with the KV blocks that there are: what the scheduler plans with
};

// The configuration that it gets is resolved.
using ExecutorMaker = std::function<MadeExecutor(const ExecutorOptions&)>;

MadeExecutor make_executor_in_process(const ExecutorOptions& options);  // LocalExecutor, step 4

struct EngineMakers {
  ModelMakers model;    // of linear methods, attention, MLP: step2_model/model_makers.h
  RunnerMakers runner;  // of a logits processor, a proposer: step4_runner/executor_options.h
  ExecutorMaker executor = make_executor_in_process;
  // The layers at which the stages of a pipeline end (RunnerConfig::stage_ends), where the configuration does not say it;
  // empty: as even as they go.
  std::function<std::vector<int64_t>(const DecoderSpec& spec, int stages)> split_layers;
};

}  // namespace ladder

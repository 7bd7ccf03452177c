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
#include "step4_runner/phase_executors.h"
#include "step5_scheduler/kv_connector.h"

namespace ladder {

struct MadeExecutor {
  std::unique_ptr<Executor> executor;
  BatchConfig batch;  // with the KV blocks that there are: what the scheduler plans with
  std::unique_ptr<PhaseExecutors> phases = {};  // or, in place of `executor`, one for each phase
};

// The configuration that it gets is resolved.
using ExecutorMaker = std::function<MadeExecutor(const ExecutorOptions&)>;

MadeExecutor make_executor_in_process(const ExecutorOptions& options);  // LocalExecutor, step 4

// What connects an engine with others (step 8): the scheduler's half, and what the ranks show their caches to. Both may be one.
struct MadeKvConnector {
  std::shared_ptr<KvConnector> connector;
  std::shared_ptr<KvCacheRegistry> kv_caches;  // null: it needs none
};

struct EngineMakers {
  ModelMakers model;    // of linear methods, attention, MLP: step2_model/model_makers.h
  RunnerMakers runner;  // of a logits processor, a proposer: step4_runner/executor_options.h
  ExecutorMaker executor = make_executor_in_process;
  // Called before the executor is made. Empty: the engine is connected with none.
  std::function<MadeKvConnector(const ExecutorOptions& options)> kv_connector;
  // The layers at which the stages of a pipeline end (RunnerConfig::stage_ends), where the configuration does not say it;
  // empty: as even as they go.
  std::function<std::vector<int64_t>(const DecoderSpec& spec, int stages)> split_layers;
};

}  // namespace ladder

#pragma once
// Task 4.5: a step that was launched and is not collected.
//
// Launching a step on a GPU takes microseconds, computing it milliseconds. What remains in between is
// this: the event that is past when the step is done, the host memory where its results will lie, and what it
// takes to read them. The thread that launches and the one that collects may be different ones; once launched
// nothing here changes.
#include <cstdint>
#include <memory>
#include <vector>

#include "step1_layers/core/device_graph.h"
#include "step4_runner/batch.h"
#include "step4_runner/executor.h"
#include "step4_runner/sampler.h"

namespace ladder {

struct LaunchedStep {
  struct Row {
    SequenceId id = 0;
    bool yields_token = false;
    bool wants_logprobs = false;
  };
  // Log probabilities of prompt positions; owner[i] is the row of `rows` that position i belongs to.
  struct PromptLogprobs {
    LoggedRows logged;
    std::vector<size_t> owner;
  };

  int64_t step = 0;
  std::vector<Row> rows;
  Tensor token_ids;  // i32, on the host: one per row that yields a token
  std::vector<LoggedRows> logprobs;
  std::vector<PromptLogprobs> prompt_logprobs;
  PendingTokens pending;

  // Host seconds. On a GPU the events say how long the rest took; one between forward pass and sampling would
  // cost every step 2 us to say where the border is.
  double prepare_seconds = 0.0, forward_seconds = 0.0, sample_seconds = 0.0;
  double communicate_seconds = 0.0, stage_wait_seconds = 0.0;  // of these
  DeviceEvent begun;
  DeviceEvent waits, received;  // around the wait for the stage before, in a pipeline
  std::shared_ptr<DeviceEvent> done = std::make_shared<DeviceEvent>();

  std::span<const int32_t> tokens() const;  // waits until they are there
  // Waits until the step is done. One result for every row, in their order: the i-th row that yields a token gets the
  // i-th of tokens(), and where it wants them its log probabilities, LoggedRows::rows counting those tokens; rows
  // that yield none get none. Log probabilities of prompts go to their owners. The seconds of the whole are the sum of
  // the three phases, the time between the events counted with the forward pass.
  StepOutput collect() const;
};

}  // namespace ladder

#pragma once
// Task 4.4: the seam between the scheduler and whatever computes.
//
// submit() hands over one step and returns a ticket at once or when the step is done; collect() gives that
// step's tokens. Several tickets may be in flight: an executor that runs ahead treats a token not yet known
// as a placeholder, which it fills on the device. Tickets are collected in the order of submission.
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "step3_sequence/scheduler_output.h"

namespace ladder {

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0.0f;  // natural log of the raw logits' softmax
};

struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;            // best first
  std::vector<TokenLogprob> selected = {};  // those of logprob_token_ids, in their order
};

// What one scheduled sequence got out of a step.
struct SequenceStepOutput {
  SequenceId id = 0;
  std::vector<int32_t>
      token_ids;  // 0 while the prompt is being caught up with, else 1; with speculation up to k + 1;
                  // kInvalidToken where the logits were no numbers, see sampler.h
  std::vector<PositionLogprobs> logprobs;  // one per token of token_ids, if the request asked for them
  std::vector<PositionLogprobs>
      prompt_logprobs;  // if asked for: one per prompt position whose next token is a prompt
                        // token, for the positions computed in this step, in order
};

struct StepOutput {
  int64_t step = 0;
  std::vector<SequenceStepOutput> sequences;  // in the order of SchedulerOutput::scheduled
  double execute_seconds = 0.0;               // the whole step, and its phases:
  double prepare_seconds = 0.0;               // the batch
  double forward_seconds = 0.0;               // the model and the LM head; on a GPU sampling, too
  double sample_seconds = 0.0;                // sampling and log probabilities
  // Of the whole, on the CPU, by the rank that answers: calls to the others of its stage; waiting for the stage before.
  double communicate_seconds = 0.0;
  double stage_wait_seconds = 0.0;
};

// What a step has sampled, for the ranks of a pipeline: the tokens of the last stage travel to the others with a later
// step. One for each sequence of it that got one, in the order of SchedulerOutput::scheduled.
struct KnownTokens {
  int64_t step = 0;
  std::vector<int32_t> token_ids;
};
KnownTokens known_tokens(const StepOutput& output);

struct Ticket {
  int64_t value = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual Ticket submit(const SchedulerOutput& step) = 0;
  virtual StepOutput collect(
      Ticket ticket) = 0;  // Error: a ticket out of order, or what the step failed with
  virtual int max_in_flight() const { return 1; }  // steps that may be submitted and not collected
  // For an engine without steps to run: throws what the executor has failed with by itself. Waits for nothing.
  virtual void check() {}

  // An executor that can only run a step while others run one (replicas that share out experts, step 7). One of them is about
  // to, and waits for this one: an engine without a step of its own then calls run_along(), which returns when that step is
  // done, or at once where nobody had one in the end. `wake` is called by any thread when is_awaited() has become true.
  virtual bool is_awaited() const { return false; }
  virtual void run_along() {}
  virtual void on_awaited(std::function<void()> /*wake*/) {}
};

}  // namespace ladder

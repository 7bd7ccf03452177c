#pragma once
// Task 6.1: requests in, tokens out.
//
//   add_request() ----> Scheduler ----schedule()----> Executor.submit()
//                          ^                               |
//                          +--------- update() <------- collect()
//                                        |
//                          text, stop strings, metrics ----> step()'s result
//
// One call of step() submits as many steps as the executor takes in flight, collects the oldest and turns its
// tokens into text. Everything happens on the calling thread; the class is not thread-safe. vLLM:
// vllm/v1/engine/llm_engine.py.
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "step2_model/tokenizer/tokenizer.h"
#include "step5_scheduler/scheduler.h"
#include "step6_engine/request.h"
#include "step6_engine/text/completion_text.h"

namespace ladder {

struct StepResult {
  std::vector<CompletionUpdate> updates;  // of this step, one per completion that has something to tell
  std::vector<RequestOutput> finished;    // requests all of whose completions ended in this step
  StepMetrics metrics;
};

class Engine {
 public:
  // `tokenizer` may be null: prompts are token ids then, and outputs have no text.
  Engine(std::unique_ptr<Executor> executor, SchedulerConfig config,
         std::shared_ptr<const Tokenizer> tokenizer);
  ~Engine();  // waits for the steps in flight

  // Queues a request. Error, and nothing is queued: an empty prompt, text or stop strings without a
  // tokenizer, a sampling parameter out of range, an id outside the vocabulary, a prompt that is too long, or
  // a request that cannot fit the KV cache even alone.
  RequestId add_request(const Request& request);

  // Runs until one submitted step is done. Error: what the executor failed with.
  StepResult step();

  // Takes a request back; it gets no output. Unknown and finished ids are ignored.
  void abort(RequestId id);

  bool has_unfinished() const { return !requests_.empty() || !in_flight_.empty(); }

  // Adds the requests and steps until they are done; outputs in the order of the requests. `on_step`, if
  // given, sees every step. All requests are added before the first step, so an Error of one leaves nothing
  // running.
  std::vector<RequestOutput> generate(const std::vector<Request>& requests,
                                      const std::function<void(const StepResult&)>& on_step = {});

  const EngineMetrics& metrics() const { return metrics_; }
  void reset_metrics() { metrics_ = {}; }
  const Scheduler& scheduler() const { return scheduler_; }
  Executor& executor() { return *executor_; }
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }

 private:
  struct ActiveCompletion {
    SequenceId sequence = 0;
    CompletionOutput output;
    CompletionText text;
  };
  struct ActiveRequest {
    explicit ActiveRequest(double now) : timer(now) {}

    RequestOutput output;  // completions are moved in when they end
    std::vector<ActiveCompletion> completions;
    RequestTimer timer;
    bool wants_logprobs = false;
    int64_t num_unfinished = 0;
  };
  struct SequenceOwner {
    RequestId request = 0;
    int64_t completion = 0;
  };
  struct InFlight {
    Ticket ticket;
    int64_t num_tokens = 0;
    int64_t num_sequences = 0;
  };

  void submit_steps();
  void apply(const SequenceUpdate& update, double now, StepResult& result);

  std::unique_ptr<Executor> executor_;
  Scheduler scheduler_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  RequestId next_id_ = 0;
  std::map<RequestId, ActiveRequest> requests_;
  std::unordered_map<SequenceId, SequenceOwner> owners_;
  std::deque<InFlight> in_flight_;
  SchedulerOutput scheduled_;  // reused
  EngineMetrics metrics_;
};

}  // namespace ladder

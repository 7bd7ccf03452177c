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
// tokens into text. With an executor for each phase it does so for both, and collects the first step that is done. Everything happens on the calling thread; the class is not thread-safe
// (engine_client.h is). vLLM: vllm/v1/engine/llm_engine.py.
//
// An engine dies of the first error of its executor or its scheduler, since the content of the KV cache is
// unknown then. From then on step(), add_request() and generate() throw that same error, every request has
// ended with FinishReason::error, which take_results() hands out, and no KV block is held.
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "step2_model/tokenizer/tokenizer.h"
#include "step4_runner/phase_executors.h"
#include "step5_scheduler/scheduler.h"
#include "step6_engine/engine_observer.h"
#include "step6_engine/prepare_request.h"
#include "step6_engine/request.h"
#include "step6_engine/text/completion_text.h"

namespace ladder {

// How long a step() waits for another engine.
inline constexpr std::chrono::milliseconds kKvPatience{10};

struct StepResult {
  std::vector<CompletionUpdate> updates;  // for each completion that got something, in the order of time
  std::vector<RequestOutput> finished;    // requests all of whose completions have ended
  StepMetrics metrics;
};

class Engine {
 public:
  // `tokenizer` may be null: prompts are token ids then, and outputs have no text. `connector`: to other engines, or null.
  Engine(std::unique_ptr<Executor> executor, SchedulerConfig config,
         std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<KvConnector> connector = nullptr);
  // Prompts and answers are computed by steps that run at the same time: SchedulerConfig::phase_lanes, which is set here.
  Engine(std::unique_ptr<PhaseExecutors> executors, SchedulerConfig config,
         std::shared_ptr<const Tokenizer> tokenizer);
  ~Engine();  // waits for the steps in flight

  // Tokens and checks, as prepare_request(). Reads nothing that changes: safe from any thread.
  PreparedRequest prepare(const Request& request) const;

  // Queues a request and returns its id. Error, and nothing is queued: as prepare_request(), or an id that
  // another request has which has not been handed out yet.
  RequestId add_request(PreparedRequest request);
  RequestId add_request(const Request& request) { return add_request(prepare(request)); }

  // Runs until one submitted step is done. Error: what the executor or the scheduler failed with; the engine
  // is dead then. Where all that is left waits for keys from another engine it returns at once without one, and each
  // further call waits for them, for at most kKvPatience.
  StepResult step();
  // The same without submitting further steps: for an engine that is to stand still.
  StepResult collect_step();
  // The last step() had nothing to compute: all that is left waits for another engine, and nothing was added or taken back since.
  bool waits_for_kv() const { return waits_for_kv_; }
  // What has come from other engines, or is kept for them no more, where no step() sees to it: of an engine with a connector. Error: as step().
  StepResult take_kv_events();
  // `wake` is called, on any thread, when there is something to take. Without a connector: never.
  void on_kv_event(std::function<void()> wake);
  // `hook` is called when a step's output is there, before its tokens are handed out: who has left while it was computed
  // can still be taken back by abort(), so that nothing of his is kept for another engine. It may do nothing else here.
  void before_update(std::function<void()> hook) { before_update_ = std::move(hook); }
  // Runs along with a step of other engines (Executor::run_along()). Error: as step().
  StepResult run_along();
  // Between steps, where there may be none for long: has the executor failed by itself? Error, and death: as step().
  void check();
  int64_t num_steps_in_flight() const { return static_cast<int64_t>(in_flight_.size()); }

  // What is there to be handed out without another step, and would else come with the next one: the outputs
  // of aborted requests, and what generate() saw of requests that were not its own. Of a dead engine also
  // the outputs of all requests that it died with.
  StepResult take_results();

  // Ends a request where it is: its output, with FinishReason::abort and what was generated so far, comes
  // with the next step() or take_results(). Ids that are unknown or have ended are ignored.
  void abort(const RequestId& id);

  // Whether a further step() brings something.
  bool has_unfinished() const;

  // Adds the requests and steps until they are done; outputs in the order of the requests. `on_step`, if
  // given, sees every step, those of other requests too; it may add and abort requests, but not step.
  // What the steps brought for requests added before is handed out by the next step(). An Error of a
  // request, of a step or of `on_step` ends these requests without an output.
  std::vector<RequestOutput> generate(const std::vector<Request>& requests,
                                      const std::function<void(const StepResult&)>& on_step = {});

  // Forgets all cached prefixes. False, and nothing happens, while a KV block is held.
  bool reset_prefix_cache() { return scheduler_.reset_prefix_cache(); }

  bool dead() const { return error_ != nullptr; }
  const std::string& error() const { return error_message_; }  // what it died of; empty while it lives
  std::exception_ptr exception() const { return error_; }      // the same, as it was thrown

  const EngineMetrics& metrics() const { return metrics_; }
  void reset_metrics() { metrics_ = {}; }
  const Scheduler& scheduler() const { return scheduler_; }
  // Of a phase, which counts for an engine that has an executor for each.
  Executor& executor(StepPhase phase = StepPhase::decode) {
    return phases_ != nullptr ? phases_->of(phase) : *executor_;
  }
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }

  // Sees every step from now on; as long as the engine lives.
  void add_observer(std::shared_ptr<EngineObserver> observer) { observers_.push_back(std::move(observer)); }

  // Whose sequence it is; none: nobody's, or it has ended.
  struct Owner {
    RequestId request_id;
    int64_t completion = 0;
    double arrival = 0.0;  // of the request: seconds on a steady clock
  };
  std::optional<Owner> find_owner(SequenceId id) const;

 private:
  struct ActiveCompletion {
    SequenceId sequence = 0;
    CompletionText text;
  };
  struct ActiveRequest {
    explicit ActiveRequest(double now) : timer(now) {}

    RequestOutput output;
    std::vector<ActiveCompletion> completions;  // as many as output.completions
    RequestTimer timer;
    bool wants_logprobs = false;
    int64_t num_unfinished = 0;
  };
  struct SequenceOwner {
    ActiveRequest* request = nullptr;
    int64_t completion = 0;
  };
  struct InFlight {
    Ticket ticket;
    int64_t num_tokens = 0;
    int64_t num_sequences = 0;
    StepPhase phase = StepPhase::any;
  };

  // Given: for one lane, or for both.
  void submit_steps();
  // Schedules and submits until as many steps of the phase are in flight as its executor takes, or a step is empty. The
  // requests of sequences that are new to the runner are timed (RequestTimer::on_scheduled).
  void submit_steps(StepPhase phase);
  // Given: tells the observers, then hands the step to the executor.
  Ticket submit(const SchedulerOutput& step, StepPhase phase);
  // Given: waits for the step's output, and calls what before_update() was given.
  StepOutput collect(const InFlight& step);
  // Given: the oldest step in flight; of two lanes, of that whose oldest is done first, which is waited for. in_flight_ is not empty.
  InFlight take_next_done();
  int num_in_flight(StepPhase phase) const;
  // Waits for the oldest step in flight, if there is one, and applies its updates. Fills results_.metrics, with
  // the scheduler's stats from before the update (the step still holds its blocks then), and adds it to
  // metrics_, its tokens to metrics_.serving (on_step) too. `begin`: when step() began, on the clock of seconds_now().
  void collect_oldest(double begin);
  // Tokens and text of one completion (CompletionText::append), to a new entry of results_.updates and to the
  // request's output, both alike; tokens and log probabilities (where wanted) up to the token that completed a
  // stop string. Prompt log probabilities go to the output alone; num_cached_tokens is completion 0's. What
  // came is observed (metrics_.serving.on_tokens) and then timed (RequestTimer::on_tokens). The stop reason is the stop string, or else the stop id that ended
  // it. FinishReason::error has a line for its caller in `error`.
  // A completion that ends has no owner any more; the scheduler is told where it does not know of the end (a
  // stop string: abort); then end_completion().
  void apply(const SequenceUpdate& update, double now);
  // A completion has ended, its output is complete: counts its preemptions. With the last one of the request
  // its metrics are filled (RequestTimer::fill) and added to metrics_, which counts it as aborted or failed if
  // any of its completions ended so and observes the output (metrics_.serving.on_ended), and it is forgotten, its
  // output in results_.finished.
  void end_completion(ActiveRequest& request, int64_t num_preemptions);
  bool is_known(const RequestId& id) const;
  void end_request(ActiveRequest& request, FinishReason reason, const std::string& error);
  // Requests whose keys did not come and are not to be computed here.
  void end_failed_loads();
  template <class Work>
  void or_die(Work work);
  void die(std::exception_ptr error);

  std::unique_ptr<Executor> executor_;
  std::unique_ptr<PhaseExecutors> phases_;  // in its place
  Scheduler scheduler_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  int64_t next_id_ = 0;
  std::map<RequestId, ActiveRequest> requests_;  // its nodes stay where they are
  std::unordered_map<SequenceId, SequenceOwner> owners_;
  std::deque<InFlight> in_flight_;  // in the order of submission
  StepResult results_;              // not handed out yet
  std::exception_ptr error_;
  std::string error_message_;
  std::vector<std::shared_ptr<EngineObserver>> observers_;
  bool waits_for_kv_ = false;
  std::function<void()> before_update_;
  SchedulerOutput scheduled_;  // reused
  EngineMetrics metrics_;
};

}  // namespace ladder

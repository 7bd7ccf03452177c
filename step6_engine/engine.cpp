// The loop without its bookkeeping:
//
//   step():
//     while fewer than max_in_flight() steps are in flight:
//       scheduler.schedule(output);  if it is empty: break
//       in_flight.push(executor.submit(output))
//     for each update of scheduler.update(executor.collect(in_flight.pop())):
//       request = owner[update.sequence]                  none: it was aborted while the step was computed
//       text = request.text.append(update.tokens)         may end it: a stop string
//       results.updates.push(request.id, update.tokens, text)
//       if it ended and no other completion of the request runs: results.finished.push(request.output)
//     return results
//
// What the rest buys: aborts end a request in the middle of all that; the first error ends the engine with
// every request in it; and results wait in `results_` until they are taken, so that nothing is lost
// between two calls (end_requests.cpp, generate.cpp).
#include "step6_engine/engine.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "step1_layers/core/error.h"
#include "step1_layers/core/profile.h"

namespace ladder {

namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

SchedulerConfig with_lanes(SchedulerConfig config) {
  config.phase_lanes = true;
  return config;
}

}  // namespace

Engine::Engine(std::unique_ptr<Executor> executor, SchedulerConfig config,
               std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<KvConnector> connector)
    : executor_(std::move(executor)),
      scheduler_(std::move(config), nullptr, std::move(connector)),
      tokenizer_(std::move(tokenizer)) {}

Engine::Engine(std::unique_ptr<PhaseExecutors> executors, SchedulerConfig config,
               std::shared_ptr<const Tokenizer> tokenizer)
    : phases_(std::move(executors)),
      scheduler_(with_lanes(std::move(config))),
      tokenizer_(std::move(tokenizer)) {}

Engine::~Engine() {
  try {
    for (const InFlight& step : in_flight_) executor(step.phase).collect(step.ticket);
  } catch (const std::exception&) {
    // The executor failed, and a destructor cannot throw.
  }
}

PreparedRequest Engine::prepare(const Request& request) const {
  return prepare_request(request, tokenizer_.get(), scheduler_);
}

RequestId Engine::add_request(PreparedRequest request) {
  if (error_) std::rethrow_exception(error_);
  RequestId id = std::move(request.request_id);
  if (id.empty()) {
    do id = std::to_string(next_id_++);
    while (is_known(id));
  }
  LADDER_CHECK(!is_known(id), "request_id {}: another request of this id has not ended yet", id);

  ActiveRequest active(seconds_now());
  const SamplingParams& sampling = request.sampling;
  const std::vector<SequenceId> sequences =
      scheduler_.add(request.prompt_token_ids, sampling, std::move(request.kv_transfer));
  waits_for_kv_ = false;
  metrics_.serving.on_request(sampling);
  active.output.request_id = id;
  active.output.metrics.num_prompt_tokens = std::ssize(request.prompt_token_ids);
  active.output.prompt_token_ids = std::move(request.prompt_token_ids);
  active.output.completions.resize(sequences.size());
  active.wants_logprobs = wanted_logprobs(sampling).has_value();
  active.num_unfinished = std::ssize(sequences);
  for (size_t i = 0; i < sequences.size(); ++i) {
    active.completions.push_back({sequences[i], CompletionText(tokenizer_.get(), sampling)});
    if (tokenizer_ != nullptr) active.output.completions[i].text.emplace();
  }
  ActiveRequest& added = requests_.emplace(id, std::move(active)).first->second;
  for (size_t i = 0; i < sequences.size(); ++i) owners_[sequences[i]] = {&added, static_cast<int64_t>(i)};
  return id;
}

bool Engine::is_known(const RequestId& id) const {
  const auto has_id = [&id](const RequestOutput& output) { return output.request_id == id; };
  return requests_.contains(id) || std::any_of(results_.finished.begin(), results_.finished.end(), has_id);
}

bool Engine::has_unfinished() const {
  return !requests_.empty() || !in_flight_.empty() || !results_.updates.empty() || !results_.finished.empty();
}

// The work of a living engine, which dies of what the work throws (die(): end_requests.cpp).
template <class Work>
void Engine::or_die(Work work) {
  if (error_) std::rethrow_exception(error_);
  try {
    work();
  } catch (...) {
    die(std::current_exception());
    throw;
  }
}

StepResult Engine::step() {
  or_die([this] {
    const double begin = seconds_now();
    if (waits_for_kv_) scheduler_.connector()->wait(kKvPatience);
    submit_steps();
    end_failed_loads();
    waits_for_kv_ = in_flight_.empty() && !requests_.empty() && scheduler_.waits_for_kv();
    LADDER_CHECK(!in_flight_.empty() || requests_.empty() || waits_for_kv_,
                 "nothing can be scheduled, yet {} requests are waiting", requests_.size());
    collect_oldest(begin);
  });
  return take_results();
}

StepResult Engine::collect_step() {
  or_die([this] { collect_oldest(seconds_now()); });
  return take_results();
}

StepResult Engine::take_kv_events() {
  or_die([this] {
    scheduler_.take_kv_events();
    end_failed_loads();
  });
  waits_for_kv_ = false;
  return take_results();
}

void Engine::on_kv_event(std::function<void()> wake) {
  if (scheduler_.connector() != nullptr) scheduler_.connector()->on_event(std::move(wake));
}

StepResult Engine::run_along() {
  or_die([this] { executor().run_along(); });
  return take_results();
}

void Engine::check() {
  or_die([this] {
    executor(StepPhase::prefill).check();
    if (phases_ != nullptr) executor(StepPhase::decode).check();
  });
}

StepResult Engine::take_results() {
  StepResult results = std::exchange(results_, {});
  for (const auto& observer : observers_) observer->on_results(*this, results);
  return results;
}

Ticket Engine::submit(const SchedulerOutput& step, StepPhase phase) {
  for (const auto& observer : observers_) observer->on_submit(*this, step);
  return executor(phase).submit(step);
}

StepOutput Engine::collect(const InFlight& step) {
  StepOutput output = executor(step.phase).collect(step.ticket);
  if (before_update_) before_update_();
  return output;
}

int Engine::num_in_flight(StepPhase phase) const {
  return static_cast<int>(std::count_if(in_flight_.begin(), in_flight_.end(),
                                        [phase](const InFlight& step) { return step.phase == phase; }));
}

// Decodes first: whoever is being answered waits for them. And a decode that gives its own blocks up is a prompt again,
// which the prefill step after it may take.
void Engine::submit_steps() {
  if (phases_ == nullptr) return submit_steps(StepPhase::any);
  submit_steps(StepPhase::decode);
  const int before = num_in_flight(StepPhase::prefill);
  submit_steps(StepPhase::prefill);
  if (num_in_flight(StepPhase::prefill) > before) phases_->on_waiting(scheduler_.num_waiting_tokens());
}

Engine::InFlight Engine::take_next_done() {
  auto next = in_flight_.begin();
  if (phases_ != nullptr)
    next = std::find_if(in_flight_.begin(), in_flight_.end(),
                        [done = phases_->wait()](const InFlight& step) { return step.phase == done; });
  const InFlight step = *next;
  in_flight_.erase(next);
  return step;
}

std::optional<Engine::Owner> Engine::find_owner(SequenceId id) const {
  const auto found = owners_.find(id);
  if (found == owners_.end()) return {};
  const ActiveRequest& request = *found->second.request;
  return Owner{request.output.request_id, found->second.completion, request.timer.arrival()};
}

// >>> task 6.1: submit, collect, hand the tokens to their requests
void Engine::submit_steps(StepPhase phase) {
  while (num_in_flight(phase) < executor(phase).max_in_flight()) {
    {
      const ProfileRange range("5.2 schedule");
      scheduler_.schedule(scheduled_, phase);
    }
    if (scheduled_.empty()) return;
    const double now = seconds_now();
    for (const NewSequence& sequence : scheduled_.new_sequences)
      if (auto owner = owners_.find(sequence.id); owner != owners_.end())
        owner->second.request->timer.on_scheduled(now);
    in_flight_.push_back({submit(scheduled_, phase), scheduled_.total_num_tokens,
                          static_cast<int64_t>(scheduled_.scheduled.size()), phase});
  }
}

// `begin`: when the step that collects it began.
void Engine::collect_oldest(double begin) {
  if (in_flight_.empty()) return;
  const SchedulerStats stats = scheduler_.stats();  // while the step holds its blocks
  StepOutput output;
  InFlight step;
  {
    const ProfileRange range("4.4 collect");
    step = take_next_done();
    output = collect(step);
  }
  const ProfileRange range("5.5 update, 6.2 text");

  results_.metrics = {.step = output.step,
                      .num_tokens = step.num_tokens,
                      .num_running = step.num_sequences,
                      .num_waiting = stats.num_waiting,
                      .num_kv_blocks_used = stats.num_used_blocks,
                      .num_kv_tokens = stats.num_live_tokens,
                      .execute_seconds = output.execute_seconds,
                      .communicate_seconds = output.communicate_seconds,
                      .stage_wait_seconds = output.stage_wait_seconds,
                      .phase = step.phase};
  const double now = seconds_now();
  for (const SequenceUpdate& update : scheduler_.update(std::move(output))) apply(update, now);
  results_.metrics.seconds = seconds_now() - begin;
  metrics_.add(results_.metrics, scheduler_.config().batch.block_size);
  metrics_.serving.on_step(step.num_tokens);
}

void Engine::apply(const SequenceUpdate& update, double now) {
  const auto owner = owners_.find(update.id);
  if (owner == owners_.end()) return;  // aborted while the step was in flight
  ActiveRequest& request = *owner->second.request;
  const int64_t index = owner->second.completion;
  CompletionOutput& output = request.output.completions[static_cast<size_t>(index)];

  std::move(update.prompt_logprobs.begin(), update.prompt_logprobs.end(),
            std::back_inserter(request.output.prompt_logprobs));
  if (index == 0) request.output.metrics.num_cached_tokens = update.num_cached_tokens;
  if (update.kv_transfer != nullptr) request.output.kv_transfer = *update.kv_transfer;

  CompletionText::Appended appended =
      request.completions[static_cast<size_t>(index)].text.append(update.new_token_ids, update.finish_reason);
  metrics_.serving.on_tokens(request.timer, request.output.metrics, index, appended.num_tokens, now);
  request.timer.on_tokens(index, appended.num_tokens, now);

  CompletionUpdate& news = results_.updates.emplace_back();
  news.request_id = request.output.request_id;
  news.completion = index;
  news.token_ids.assign(update.new_token_ids.begin(), update.new_token_ids.begin() + appended.num_tokens);
  if (request.wants_logprobs)
    news.logprobs.assign(update.logprobs.begin(), update.logprobs.begin() + appended.num_tokens);
  news.text = std::move(appended.text);
  news.finish_reason = appended.finish_reason;
  if (appended.stop_string)
    news.stop_reason = std::move(*appended.stop_string);
  else if (update.stop_token_id)
    news.stop_reason = *update.stop_token_id;

  output.token_ids.insert(output.token_ids.end(), news.token_ids.begin(), news.token_ids.end());
  output.logprobs.insert(output.logprobs.end(), news.logprobs.begin(), news.logprobs.end());
  if (output.text) *output.text += news.text;
  output.finish_reason = news.finish_reason;
  output.stop_reason = news.stop_reason;
  if (output.finish_reason == FinishReason::error)
    output.error = "no token can be drawn: the model's logits hold NaN, or every token is forbidden";
  if (output.finish_reason == FinishReason::none) return;

  if (update.finish_reason == FinishReason::none)
    scheduler_.abort(update.id);  // a stop string: the scheduler knows none
  owners_.erase(owner);
  end_completion(request, update.num_preemptions);
}

// Its output and its update are complete. The last completion takes the request with it.
void Engine::end_completion(ActiveRequest& request, int64_t num_preemptions) {
  request.output.metrics.num_preemptions += num_preemptions;
  if (--request.num_unfinished > 0) return;
  request.timer.fill(request.output.metrics);
  metrics_.add(request.output.metrics);
  const auto ended_by = [&request](FinishReason reason) {
    return std::any_of(request.output.completions.begin(), request.output.completions.end(),
                       [reason](const CompletionOutput& output) { return output.finish_reason == reason; });
  };
  metrics_.num_requests_aborted += ended_by(FinishReason::abort);
  metrics_.num_requests_failed += ended_by(FinishReason::error);
  metrics_.serving.on_ended(request.output);
  const RequestId id = request.output.request_id;
  results_.finished.push_back(std::move(request.output));
  requests_.erase(id);
}
// <<< task 6.1

}  // namespace ladder

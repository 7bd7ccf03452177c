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

}  // namespace

Engine::Engine(std::unique_ptr<Executor> executor, SchedulerConfig config,
               std::shared_ptr<const Tokenizer> tokenizer)
    : executor_(std::move(executor)), scheduler_(std::move(config)), tokenizer_(std::move(tokenizer)) {}

Engine::~Engine() {
  try {
    for (const InFlight& step : in_flight_) executor_->collect(step.ticket);
  } catch (const std::exception&) {
    // The executor failed; whoever stepped the engine has seen it, or did not care to.
  }
}

RequestId Engine::add_request(const Request& request) {
  ActiveRequest active(seconds_now());
  std::vector<int32_t>& prompt = active.output.prompt_token_ids;
  if (request.prompt) {
    LADDER_CHECK(tokenizer_ != nullptr,
                 "a text prompt needs a tokenizer, and the model's folder has no tokenizer.json");
    LADDER_CHECK(!request.prompt->empty(), "the prompt is empty");
    prompt = tokenizer_->encode(*request.prompt, true);
  } else {
    prompt = request.prompt_token_ids;
  }
  LADDER_CHECK(request.sampling.stop.empty() || tokenizer_ != nullptr,
               "stop strings need a tokenizer, and the model's folder has no tokenizer.json");

  const std::vector<SequenceId> sequences = scheduler_.add(prompt, request.sampling);

  const RequestId id = next_id_++;
  active.output.request = id;
  active.output.metrics.num_prompt_tokens = static_cast<int64_t>(prompt.size());
  active.output.completions.resize(sequences.size());
  active.wants_logprobs = request.sampling.logprobs.has_value();
  active.num_unfinished = static_cast<int64_t>(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) {
    active.completions.push_back({sequences[i], {}, CompletionText(tokenizer_.get(), request.sampling.stop)});
    if (tokenizer_ != nullptr) active.completions.back().output.text.emplace();
    owners_[sequences[i]] = {id, static_cast<int64_t>(i)};
  }
  requests_.emplace(id, std::move(active));
  return id;
}

// >>> task 6.1: submit, collect, hand the tokens to their requests
void Engine::submit_steps() {
  while (static_cast<int>(in_flight_.size()) < executor_->max_in_flight()) {
    {
      const ProfileRange range("5.2 schedule");
      scheduler_.schedule(scheduled_);
    }
    if (scheduled_.empty()) return;
    const double now = seconds_now();
    for (const NewSequence& sequence : scheduled_.new_sequences)
      if (auto owner = owners_.find(sequence.id); owner != owners_.end())
        requests_.at(owner->second.request).timer.on_scheduled(now);
    in_flight_.push_back({executor_->submit(scheduled_), scheduled_.total_num_tokens,
                          static_cast<int64_t>(scheduled_.scheduled.size())});
  }
}

StepResult Engine::step() {
  StepResult result;
  const double begin = seconds_now();
  submit_steps();
  if (in_flight_.empty()) {
    LADDER_CHECK(requests_.empty(), "nothing can be scheduled, yet {} requests are waiting",
                 requests_.size());
    return result;
  }
  const InFlight step = in_flight_.front();
  in_flight_.pop_front();
  const SchedulerStats stats = scheduler_.stats();  // while the step holds its blocks
  StepOutput output = [&] {
    const ProfileRange range("4.4 collect");
    return executor_->collect(step.ticket);
  }();
  const ProfileRange range("5.5 update, 6.2 text");

  result.metrics = {.step = output.step,
                    .num_tokens = step.num_tokens,
                    .num_running = step.num_sequences,
                    .num_waiting = stats.num_waiting,
                    .num_kv_blocks_used = stats.num_used_blocks,
                    .num_kv_tokens = stats.num_live_tokens,
                    .execute_seconds = output.execute_seconds};
  const double now = seconds_now();
  for (const SequenceUpdate& update : scheduler_.update(std::move(output))) apply(update, now, result);
  result.metrics.seconds = seconds_now() - begin;
  metrics_.add(result.metrics, scheduler_.config().batch.block_size);
  return result;
}

void Engine::apply(const SequenceUpdate& update, double now, StepResult& result) {
  const auto owner = owners_.find(update.id);
  if (owner == owners_.end()) return;  // aborted while the step was in flight
  const auto [id, index] = owner->second;
  const auto position = requests_.find(id);
  ActiveRequest& request = position->second;
  ActiveCompletion& completion = request.completions[static_cast<size_t>(index)];

  std::move(update.prompt_logprobs.begin(), update.prompt_logprobs.end(),
            std::back_inserter(request.output.prompt_logprobs));
  CompletionText::Appended appended = completion.text.append(update.new_token_ids, update.finish_reason);
  const auto count = static_cast<size_t>(appended.num_tokens);
  request.timer.on_tokens(index, appended.num_tokens, now);

  CompletionOutput& output = completion.output;
  output.token_ids.insert(output.token_ids.end(), update.new_token_ids.begin(),
                          update.new_token_ids.begin() + appended.num_tokens);
  if (request.wants_logprobs)
    output.logprobs.insert(output.logprobs.end(), update.logprobs.begin(),
                           update.logprobs.begin() + appended.num_tokens);
  if (output.text) *output.text += appended.text;
  output.finish_reason = appended.finish_reason;
  result.updates.push_back(
      {id,
       index,
       {update.new_token_ids.begin(), update.new_token_ids.begin() + static_cast<std::ptrdiff_t>(count)},
       std::move(appended.text),
       appended.finish_reason});

  if (index == 0) request.output.metrics.num_cached_tokens = update.num_cached_tokens;
  if (appended.finish_reason == FinishReason::none) return;

  if (update.finish_reason == FinishReason::none)
    scheduler_.abort(update.id);  // a stop string: the scheduler knows none
  request.output.metrics.num_preemptions += update.num_preemptions;
  request.output.completions[static_cast<size_t>(index)] = std::move(output);
  owners_.erase(owner);
  if (--request.num_unfinished > 0) return;
  request.timer.fill(request.output.metrics);
  metrics_.add(request.output.metrics);
  result.finished.push_back(std::move(request.output));
  requests_.erase(position);
}
// <<< task 6.1

void Engine::abort(RequestId id) {
  const auto position = requests_.find(id);
  if (position == requests_.end()) return;
  for (const ActiveCompletion& completion : position->second.completions) {
    scheduler_.abort(completion.sequence);
    owners_.erase(completion.sequence);
  }
  requests_.erase(position);
}

std::vector<RequestOutput> Engine::generate(const std::vector<Request>& requests,
                                            const std::function<void(const StepResult&)>& on_step) {
  std::vector<RequestId> ids;
  try {
    for (const Request& request : requests) ids.push_back(add_request(request));
  } catch (...) {
    for (RequestId id : ids) abort(id);
    throw;
  }
  std::vector<RequestOutput> outputs(requests.size());
  for (size_t missing = requests.size(); missing > 0;) {
    StepResult result = step();
    if (on_step) on_step(result);
    for (RequestOutput& output : result.finished) {
      const auto at = std::lower_bound(ids.begin(), ids.end(), output.request);
      if (at == ids.end() || *at != output.request) continue;  // somebody else's
      outputs[static_cast<size_t>(at - ids.begin())] = std::move(output);
      --missing;
    }
  }
  // What ran ahead of the last token has nobody to tell; its blocks come back.
  while (requests_.empty() && !in_flight_.empty()) step();
  return outputs;
}

}  // namespace ladder

#pragma once
// An executor without a model: the next token is a function of the tokens so far. It keeps its own copy of
// every sequence from what SchedulerOutput says, so a wrong output shows as a wrong token, and may take
// several steps at once.
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <stdexcept>
#include <string_view>

#include "step4_runner/executor.h"

namespace ladder::testing {

class FakeExecutor final : public Executor {
 public:
  using NextToken = std::function<int32_t(const std::vector<int32_t>& token_ids, int64_t num_prompt_tokens)>;

  // Called at the beginning of submit() and collect() with the number of the step; what it throws, they
  // throw.
  using Fault = std::function<void(std::string_view call, int64_t step)>;

  explicit FakeExecutor(NextToken next_token, int max_in_flight = 1, Fault fault = {})
      : next_token_(std::move(next_token)), fault_(std::move(fault)), max_in_flight_(max_in_flight) {}

  Ticket submit(const SchedulerOutput& step) override {
    if (fault_) fault_("submit", step.step);
    for (SequenceId id : step.finished) sequences_.erase(id);
    for (SequenceId id : step.preempted) sequences_.erase(id);
    for (const NewSequence& added : step.new_sequences) {
      std::vector<int32_t> token_ids;
      if (added.prompt_of >= 0) {
        token_ids = sequences_.at(added.prompt_of).token_ids;
        token_ids.resize(static_cast<size_t>(added.num_prompt_tokens));
      }
      token_ids.insert(token_ids.end(), added.token_ids.begin(), added.token_ids.end());
      sequences_[added.id] = {std::move(token_ids), added.num_prompt_tokens, added.num_computed_tokens,
                              added.sampling};
    }
    for (const ContinuedSequence& continued : step.continued)
      sequences_.at(continued.id).num_computed = continued.num_computed_tokens;

    StepOutput output;
    output.step = step.step;
    for (const ScheduledSequence& scheduled : step.scheduled) {
      State& state = sequences_.at(scheduled.id);
      SequenceStepOutput answer;
      answer.id = scheduled.id;
      const int64_t end = state.num_computed + scheduled.num_tokens;
      EXPECT_LE(end, static_cast<int64_t>(state.token_ids.size()));
      if (state.sampling.prompt_logprobs)
        for (int64_t at = state.num_computed; at < end && at + 1 < state.num_prompt; ++at)
          answer.prompt_logprobs.push_back({{state.token_ids[static_cast<size_t>(at) + 1], -0.5f}, {}});
      if (end == static_cast<int64_t>(state.token_ids.size())) {
        const int32_t token = next_token_(state.token_ids, state.num_prompt);
        answer.token_ids = {token};
        if (state.sampling.logprobs) answer.logprobs = {{{token, -0.25f}, {}}};
        state.token_ids.push_back(token);
      }
      state.num_computed = end;
      output.sequences.push_back(std::move(answer));
    }
    pending_.push_back(std::move(output));
    EXPECT_LE(static_cast<int>(pending_.size()), max_in_flight_);
    return {step.step};
  }

  StepOutput collect(Ticket ticket) override {
    if (fault_) fault_("collect", ticket.value);
    StepOutput output = std::move(pending_.front());
    pending_.pop_front();
    EXPECT_EQ(output.step, ticket.value);
    return output;
  }

  int max_in_flight() const override { return max_in_flight_; }
  // It fails without a step.
  void check() override {
    if (failed_by_itself) throw std::runtime_error("the executor is gone");
  }
  std::atomic<bool> failed_by_itself = false;

 private:
  struct State {
    std::vector<int32_t> token_ids;
    int64_t num_prompt = 0;
    int64_t num_computed = 0;
    SamplingParams sampling;
  };

  NextToken next_token_;
  Fault fault_;
  int max_in_flight_;
  std::map<SequenceId, State> sequences_;
  std::deque<StepOutput> pending_;
};

}  // namespace ladder::testing

#pragma once
// Steps requests through a ModelRunner as the engine does on a GPU: a step is launched before the one before it is
// collected, so that its sequences end in tokens that the host does not know yet.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <vector>

#include "tests/step4_runner/step_driver.h"

namespace ladder::testing {

struct AheadOptions {
  int64_t ahead =
      ModelRunner::kMaxInFlight;  // steps in flight; 1: each is collected before the next is launched
  int64_t max_running = 8;
  int64_t max_chunk = 1 << 30;                // tokens of one sequence in one step
  double join_probability = 1.0;              // that a waiting request joins a step that has room
  double skip_probability = 0.0;              // that a running sequence sits a step out
  std::function<void()> on_launched = [] {};  // after every launch
};

class AheadDriver {
 public:
  AheadDriver(ModelRunner& runner, const RunnerConfig& config, Random& random)
      : runner_(runner), config_(config), random_(random) {
    for (int64_t block = config.batch.num_kv_blocks; block-- > 0;)
      free_.push_back(static_cast<int32_t>(block));
  }

  std::vector<DrivenResult> run(const std::vector<DrivenRequest>& requests, const AheadOptions& options) {
    std::vector<DrivenResult> results(requests.size());
    size_t next = 0;
    while (next < requests.size() || !running_.empty() || !in_flight_.empty()) {
      while (next < requests.size() && std::ssize(running_) < options.max_running &&
             random_.uniform(0, 1) < options.join_probability) {
        const auto& [prompt, sampling] = requests[next];
        running_.push_back({next_id_++, next, std::ssize(prompt), 0, 0, {}, *sampling.max_tokens, false});
        ++next;
      }
      const SchedulerOutput step = schedule(requests, options);
      if (!step.empty()) {
        in_flight_.push_back({runner_.launch(step), scheduled_});
        options.on_launched();
      }
      while (!in_flight_.empty() && (std::ssize(in_flight_) >= options.ahead || step.empty()))
        collect(results);
      if (::testing::Test::HasFatalFailure()) break;
    }
    return results;
  }

 private:
  struct Running {
    SequenceId id = 0;
    size_t request = 0;
    int64_t num_tokens = 0;  // those on their way included
    int64_t num_computed = 0, num_output = 0;
    std::vector<int32_t> table;
    int64_t max_tokens = 0;
    bool known = false;
  };
  struct InFlight {
    std::shared_ptr<const LaunchedStep> launched;
    std::vector<size_t> requests;
  };

  SchedulerOutput schedule(const std::vector<DrivenRequest>& requests, const AheadOptions& options) {
    SchedulerOutput step;
    step.step = num_steps_;
    step.finished = finished_;
    scheduled_.clear();
    int64_t budget = config_.batch.max_num_batched_tokens;
    for (Running& sequence : running_) {
      if (budget == 0 || random_.uniform(0, 1) < options.skip_probability) continue;
      const int64_t count =
          std::min({sequence.num_tokens - sequence.num_computed, budget, options.max_chunk});
      std::vector<int32_t> added;
      for (; std::ssize(sequence.table) * config_.batch.block_size < sequence.num_computed + count;
           free_.pop_back()) {
        EXPECT_FALSE(free_.empty()) << "the test needs more blocks";
        added.push_back(free_.back());
        sequence.table.push_back(free_.back());
      }
      if (sequence.known) {
        step.continued.push_back({sequence.id, added, sequence.num_computed});
      } else {
        NewSequence joining;
        joining.id = sequence.id;
        joining.token_ids = requests[sequence.request].prompt;
        joining.num_prompt_tokens = std::ssize(joining.token_ids);
        joining.sampling = requests[sequence.request].sampling;
        joining.block_table = sequence.table;
        step.new_sequences.push_back(std::move(joining));
        sequence.known = true;
      }
      step.scheduled.push_back({sequence.id, count, {}});
      step.total_num_tokens += count;
      scheduled_.push_back(sequence.request);
      budget -= count;
      sequence.num_computed += count;
      if (sequence.num_computed < sequence.num_tokens) continue;
      ++sequence.num_tokens;
      ++sequence.num_output;
    }
    if (step.empty()) return step;
    ++num_steps_;
    finished_.clear();
    // A sequence that has all its tokens leaves; the step in flight still writes its blocks, and those after it come
    // later on the device, so they may be given out again at once.
    std::erase_if(running_, [&](const Running& sequence) {
      if (sequence.num_output < sequence.max_tokens) return false;
      finished_.push_back(sequence.id);
      free_.insert(free_.begin(), sequence.table.begin(), sequence.table.end());
      return true;
    });
    return step;
  }

  void collect(std::vector<DrivenResult>& results) {
    const InFlight oldest = std::move(in_flight_.front());
    in_flight_.pop_front();
    const StepOutput output = oldest.launched->collect();
    ASSERT_EQ(output.sequences.size(), oldest.requests.size());
    for (size_t i = 0; i < oldest.requests.size(); ++i) {
      DrivenResult& result = results[oldest.requests[i]];
      const SequenceStepOutput& got = output.sequences[i];
      result.token_ids.insert(result.token_ids.end(), got.token_ids.begin(), got.token_ids.end());
      result.logprobs.insert(result.logprobs.end(), got.logprobs.begin(), got.logprobs.end());
      result.prompt_logprobs.insert(result.prompt_logprobs.end(), got.prompt_logprobs.begin(),
                                    got.prompt_logprobs.end());
    }
  }

  ModelRunner& runner_;
  RunnerConfig config_;
  Random& random_;
  std::vector<int32_t> free_;
  std::vector<Running> running_;
  std::deque<InFlight> in_flight_;
  std::vector<SequenceId> finished_;  // the runner does not know yet
  std::vector<size_t> scheduled_;     // requests of the step that schedule() made
  SequenceId next_id_ = 0;
  int64_t num_steps_ = 0;
};

}  // namespace ladder::testing

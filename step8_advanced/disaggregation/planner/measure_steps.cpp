#include "step8_advanced/disaggregation/planner/measure_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <queue>
#include <random>
#include <unordered_map>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

constexpr int64_t kAnswerTokens = 16;

// What the steps compute, in their order.
class StepWatcher final : public EngineObserver {
 public:
  void on_submit(const Engine& engine, const SchedulerOutput& step) override {
    std::unordered_map<SequenceId, int64_t> num_before;
    for (const NewSequence& added : step.new_sequences) num_before[added.id] = added.num_computed_tokens;
    for (const ContinuedSequence& continued : step.continued)
      num_before[continued.id] = continued.num_computed_tokens;
    StepWork work;
    for (const ScheduledSequence& scheduled : step.scheduled) {
      const int64_t before = num_before.at(scheduled.id);
      const Sequence* sequence = engine.scheduler().find(scheduled.id);
      add_sequence(work, scheduled.num_tokens, before,
                   before + scheduled.num_tokens >= sequence->num_tokens());
    }
    submitted_.push(work);
  }
  void on_results(const Engine& /*engine*/, const StepResult& /*results*/) override {}

  StepWork take_oldest() {
    const StepWork work = submitted_.front();
    submitted_.pop();
    return work;
  }

 private:
  std::queue<StepWork> submitted_;
};

void add(MeasuredSteps& row, const StepWork& work, double seconds) {
  row.num_steps += 1;
  row.work.num_sequences += work.num_sequences;
  row.work.num_prompt_tokens += work.num_prompt_tokens;
  row.work.num_kv_tokens += work.num_kv_tokens;
  row.work.num_prompt_pairs += work.num_prompt_pairs;
  row.seconds += seconds;
}

class Measuring {
 public:
  Measuring(Engine& engine, uint64_t seed)
      : engine_(engine), watcher_(std::make_shared<StepWatcher>()), random_(seed) {
    engine.add_observer(watcher_);
  }

  // Steps with tokens of prompts, and steps of answers alone, of so many such requests at once.
  struct Run {
    MeasuredSteps prompts, answers;
  };
  Run run(int64_t num_sequences, int64_t num_prompt, int64_t num_output) {
    for (int64_t i = 0; i < num_sequences; ++i) engine_.add_request(request(num_prompt, num_output));
    Run run;
    run.prompts.num_steps = run.answers.num_steps = 0;
    auto begin = std::chrono::steady_clock::now();
    while (engine_.has_unfinished()) {
      const StepResult result = engine_.step();
      const auto end = std::chrono::steady_clock::now();
      for (const RequestOutput& output : result.finished)
        LADDER_CHECK(output.completions[0].error.empty(), "a measured request: {}",
                     output.completions[0].error);
      if (result.metrics.num_running == 0) continue;
      const StepWork work = watcher_->take_oldest();
      add(work.num_prompt_tokens > 0 ? run.prompts : run.answers, work,
          std::chrono::duration<double>(end - begin).count());
      begin = end;
    }
    return run;
  }

 private:
  Request request(int64_t num_prompt, int64_t num_output) {
    std::uniform_int_distribution<int32_t> token(
        0, static_cast<int32_t>(engine_.scheduler().config().vocab_size - 1));
    Request request;
    for (int64_t i = 0; i < num_prompt; ++i) request.prompt_token_ids.push_back(token(random_));
    request.sampling.max_tokens = num_output;
    request.sampling.temperature = 0.0;
    request.sampling.ignore_eos = true;
    return request;
  }

  Engine& engine_;
  const std::shared_ptr<StepWatcher> watcher_;
  std::mt19937_64 random_;
};

MeasuredSteps median(std::vector<MeasuredSteps> rows, std::string source) {
  std::ranges::sort(rows, {}, &MeasuredSteps::seconds);
  MeasuredSteps row = std::move(rows[rows.size() / 2]);
  row.source = std::move(source);
  return row;
}

}  // namespace

MeasuredEngine measure_steps(Engine& engine, int tensor_parallel_size, const MeasuredSizes& sizes,
                             uint64_t seed) {
  const BatchConfig& batch = engine.scheduler().config().batch;
  MeasuredEngine measured;
  measured.tensor_parallel_size = tensor_parallel_size;
  measured.num_kv_tokens = batch.num_kv_blocks * batch.block_size;
  measured.max_num_seqs = batch.max_num_seqs;
  const int64_t room = std::min(batch.max_model_len, measured.num_kv_tokens) - kAnswerTokens;
  const int64_t longest = std::min(sizes.longest_prompt, room);
  LADDER_CHECK(longest >= 16, "step times: sequences of {} tokens are too short, expected {} or more",
               room + kAnswerTokens, 16 + kAnswerTokens);

  Measuring measuring(engine, seed);
  const auto runs = [&](int64_t num_sequences, int64_t num_prompt, int64_t num_output) {
    std::vector<Measuring::Run> all;
    for (int i = 0; i < sizes.num_runs; ++i)
      all.push_back(measuring.run(num_sequences, num_prompt, num_output));
    return all;
  };
  const auto add_row = [&](const std::vector<Measuring::Run>& all, MeasuredSteps Measuring::Run::*part,
                           std::string source) {
    std::vector<MeasuredSteps> rows;
    for (const Measuring::Run& run : all) rows.push_back(run.*part);
    measured.steps.push_back(median(std::move(rows), std::move(source)));
  };
  measuring.run(1, 16, kAnswerTokens);  // what is done only once
  for (int64_t length = 16; length <= longest; length *= 4)
    add_row(runs(1, length, 1), &Measuring::Run::prompts, fmt::format("a prompt of {}", length));
  for (int64_t count = 1; count <= std::min(sizes.most_sequences, batch.max_num_seqs); count *= 4)
    for (const int64_t length : {int64_t{16}, longest / 4}) {
      const int64_t all_prompts = count * length;
      if (length < 16 || all_prompts > sizes.most_prompt_tokens) continue;
      if (all_prompts + count * (kAnswerTokens + batch.block_size) > measured.num_kv_tokens) continue;
      add_row(runs(count, length, kAnswerTokens), &Measuring::Run::answers,
              fmt::format("{} answers behind prompts of {}", count, length));
    }
  return measured;
}

}  // namespace ladder

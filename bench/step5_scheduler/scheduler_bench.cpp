// What one step of the engine costs the scheduler: schedule() and update(), with stop checks, and full blocks
// named and cached.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <vector>

#include "step5_scheduler/scheduler.h"

namespace ladder {
namespace {

// With --benchmark_repetitions: the best of them, on a machine that others use too.
double minimum(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

SchedulerConfig bench_config(int64_t num_seqs, bool prefix_caching) {
  SchedulerConfig config;
  config.batch.max_num_seqs = num_seqs;
  config.batch.max_num_batched_tokens = 8192;
  config.batch.max_model_len = 4096;
  config.vocab_size = 151936;
  config.batch.block_size = 16;
  config.batch.num_kv_blocks = 65536;
  config.eos_token_ids = {151643, 151645};
  config.enable_prefix_caching = prefix_caching;
  config.prefix_cache_seed = 1;
  return config;
}

class Load {
 public:
  Load(int64_t num_seqs, bool prefix_caching) : scheduler(bench_config(num_seqs, prefix_caching)) {
    sampling.max_tokens = 2048;
    sampling.stop_token_ids = {7, 8, 9};
    sampling.seed = 1;
    while (std::ssize(output.scheduled) < num_seqs) {
      if (scheduler.stats().num_running + scheduler.stats().num_waiting < num_seqs) add();
      scheduler.schedule(output);
      answer();
      scheduler.update(std::move(step));
    }
  }

  // Lengths between 100 and 356, so that sequences reach the ends of their blocks at different steps.
  void add() {
    std::vector<int32_t> prompt(100 + random() % 256);
    for (int32_t& id : prompt) id = static_cast<int32_t>(10 + random() % 100000);
    scheduler.add(std::move(prompt), sampling);
  }

  // The executor's answer: one token, none of them a stop, for each sequence whose prompt is done.
  void answer() {
    step = {};
    step.step = output.step;
    step.sequences.resize(output.scheduled.size());
    for (size_t i = 0; i < output.scheduled.size(); ++i) {
      const SequenceId id = output.scheduled[i].id;
      step.sequences[i].id = id;
      const Sequence& sequence = *scheduler.find(id);
      if (sequence.num_computed_tokens >= sequence.num_tokens())
        step.sequences[i].token_ids.assign(1, static_cast<int32_t>(10 + random() % 100000));
    }
  }

  Scheduler scheduler;
  SchedulerOutput output;
  StepOutput step;
  SamplingParams sampling;
  std::mt19937_64 random{1};
};

// Manual time: the clock runs for schedule() and update(), not for making up an answer.
void step_of_running_sequences(benchmark::State& state) {
  auto load = std::make_unique<Load>(state.range(0), state.range(1) != 0);
  double schedule_seconds = 0;
  for (auto _ : state) {
    if (load->scheduler.stats().num_running < state.range(0)) {  // some have ended: start afresh
      load = nullptr;
      load = std::make_unique<Load>(state.range(0), state.range(1) != 0);
    }
    const auto start = std::chrono::steady_clock::now();
    load->scheduler.schedule(load->output);
    const auto scheduled = std::chrono::steady_clock::now();
    load->answer();
    const auto answered = std::chrono::steady_clock::now();
    benchmark::DoNotOptimize(load->scheduler.update(std::move(load->step)));
    const auto end = std::chrono::steady_clock::now();
    state.SetIterationTime(std::chrono::duration<double>((scheduled - start) + (end - answered)).count());
    schedule_seconds += std::chrono::duration<double>(scheduled - start).count();
    if (std::ssize(load->output.scheduled) != state.range(0)) state.SkipWithError("not all are running");
  }
  state.counters["schedule_us"] =
      benchmark::Counter(schedule_seconds * 1e6, benchmark::Counter::kAvgIterations);
}
BENCHMARK(step_of_running_sequences)
    ->ArgNames({"seqs", "prefix_caching"})
    ->Args({1, 1})
    ->Args({32, 1})
    ->Args({256, 0})
    ->Args({256, 1})
    ->UseManualTime()
    ->ComputeStatistics("min", minimum);

// A prompt of 2,048 new tokens, computed in one step: what the prefix cache costs where it never hits. The
// difference of the two, divided by the time that a model takes for 2,048 tokens, is its share of a step.
void step_of_a_prompt_without_hits(benchmark::State& state) {
  Scheduler scheduler(bench_config(1, state.range(0) != 0));
  std::mt19937_64 random{1};
  SamplingParams sampling;
  sampling.max_tokens = 1;
  sampling.seed = 1;
  SchedulerOutput output;
  for (auto _ : state) {
    std::vector<int32_t> prompt(2048);
    for (int32_t& id : prompt) id = static_cast<int32_t>(random() % 100000);
    const auto start = std::chrono::steady_clock::now();
    const SequenceId id = scheduler.add(std::move(prompt), sampling)[0];
    scheduler.schedule(output);
    const auto scheduled = std::chrono::steady_clock::now();
    StepOutput step;
    step.step = output.step;
    step.sequences.resize(1);
    step.sequences[0].id = id;
    step.sequences[0].token_ids = {1};
    const auto answered = std::chrono::steady_clock::now();
    scheduler.update(std::move(step));
    const auto end = std::chrono::steady_clock::now();
    state.SetIterationTime(std::chrono::duration<double>((scheduled - start) + (end - answered)).count());
  }
}
BENCHMARK(step_of_a_prompt_without_hits)
    ->ArgName("prefix_caching")
    ->Arg(0)
    ->Arg(1)
    ->UseManualTime()
    ->ComputeStatistics("min", minimum);

}  // namespace
}  // namespace ladder

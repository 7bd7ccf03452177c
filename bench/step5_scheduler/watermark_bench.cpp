// What the watermark is worth: tokens computed for each token needed, and steps, on workloads that do not fit
// the cache. Everything is counted, nothing is timed: the numbers are the same on every machine.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <vector>

#include "step5_scheduler/scheduler.h"

namespace ladder {
namespace {

struct Workload {
  const char* name;
  int64_t num_blocks, min_prompt, max_prompt, min_output, max_output;
};
constexpr Workload kWorkloads[] = {
    {"chat", 2048, 50, 500, 100, 400},            // some 60 sequences fit
    {"long_answers", 2048, 20, 200, 500, 1500},   // some 25
    {"long_prompts", 8192, 2000, 6000, 50, 500},  // some 30
    {"small_cache", 512, 100, 400, 100, 600},     // some 12
};

// Arguments: the workload, and the watermark in thousandths of the cache.
void watermark(benchmark::State& state) {
  const Workload& workload = kWorkloads[state.range(0)];
  int64_t computed = 0, needed = 0, steps = 0, preemptions = 0;
  for (auto _ : state) {
    SchedulerConfig config;
    config.batch.max_num_seqs = 256;
    config.batch.max_num_batched_tokens = 2048;
    config.batch.max_model_len = 8192;
    config.vocab_size = 100000;
    config.batch.block_size = 16;
    config.batch.num_kv_blocks = workload.num_blocks;
    config.enable_prefix_caching = false;
    config.watermark = static_cast<double>(state.range(1)) / 1000;
    Scheduler scheduler(config);
    std::mt19937_64 random(1);
    const auto between = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
    };
    computed = needed = steps = 0;
    for (int i = 0; i < 400; ++i) {
      SamplingParams sampling;
      sampling.max_tokens = between(workload.min_output, workload.max_output);
      sampling.seed = 1;
      const int64_t prompt = between(workload.min_prompt, workload.max_prompt);
      needed += prompt + *sampling.max_tokens - 1;
      scheduler.add(std::vector<int32_t>(prompt, 1), sampling);
    }
    SchedulerOutput output;
    for (scheduler.schedule(output); !output.empty(); scheduler.schedule(output)) {
      ++steps;
      computed += output.total_num_tokens;
      StepOutput step;
      step.step = output.step;
      for (const ScheduledSequence& scheduled : output.scheduled) {
        const Sequence& sequence = *scheduler.find(scheduled.id);
        step.sequences.push_back({.id = scheduled.id, .token_ids = {}});
        if (sequence.num_computed_tokens >= sequence.num_tokens()) step.sequences.back().token_ids = {2};
      }
      scheduler.update(std::move(step));
    }
    preemptions = scheduler.stats().num_preemptions;
  }
  state.SetLabel(workload.name);
  state.counters["computed/needed"] = static_cast<double>(computed) / static_cast<double>(needed);
  state.counters["steps"] = static_cast<double>(steps);
  state.counters["preemptions"] = static_cast<double>(preemptions);
}
BENCHMARK(watermark)
    ->ArgNames({"workload", "permille"})
    ->ArgsProduct({{0, 1, 2, 3}, {0, 5, 10, 20, 30, 50, 80}})
    ->Iterations(1);

}  // namespace
}  // namespace ladder

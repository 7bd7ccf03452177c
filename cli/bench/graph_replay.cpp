// ladder bench graph-replay: how much of an engine's step is not the GPU's.
//
// A number of requests of the same length is started at once, so that every step but the first decodes all of
// them. Steps in the middle of a window are compared with the same step's graph and draw replayed over and
// over with nothing else done on the host: the context is then the same, and so is the GPU's work.
#include <algorithm>
#include <chrono>
#include <memory>

#include "cli/bench/bench.h"
#include "cli/bench/report.h"
#include "cli/bench/workload.h"
#include "cli/engine_flags.h"
#include "cli/flag_values.h"
#include "cli/run_requests.h"
#include "cli/terminal.h"
#include "step1_layers/core/error.h"
#include "step4_runner/local_executor.h"

namespace ladder {

namespace {

struct GraphReplayFlags {
  EngineFlags engine;
  int64_t batch = 256;
  int64_t prompt_len = 32;
  int64_t steps = 64;
  int64_t repeat = 3;
  double temperature = 0.6;
  std::string json;
};

std::vector<Request> requests_of(const GraphReplayFlags& flags, int64_t vocab_size, int64_t output_len) {
  Workload workload;
  workload.num_requests = flags.batch;
  workload.min_prompt_len = workload.max_prompt_len = flags.prompt_len;
  workload.min_output_len = workload.max_output_len = output_len;
  workload.temperature = flags.temperature;
  return make_requests(workload, vocab_size);
}

// Seconds of each of the last `count` steps of the requests; all of them must decode the whole batch.
std::vector<double> last_steps(Engine& engine, const std::vector<Request>& requests, int64_t count) {
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> ends;
  std::vector<int64_t> rows;
  engine.generate(requests, [&](const StepResult& step) {
    ends.push_back(Clock::now());
    rows.push_back(step.metrics.num_tokens);
  });
  std::vector<double> seconds;
  const auto batch = std::ssize(requests);
  for (size_t i = ends.size() - static_cast<size_t>(count); i < ends.size(); ++i) {
    LADDER_CHECK(rows[i] == batch && rows[i - 1] == batch,
                 "a step decoded {} of the {} requests: expected more room in the KV cache or a higher "
                 "--max-num-batched-tokens",
                 rows[i], batch);
    seconds.push_back(std::chrono::duration<double>(ends[i] - ends[i - 1]).count());
  }
  return seconds;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

void run_graph_replay(const GraphReplayFlags& flags) {
  check_report_file(flags.json);
  EngineOptions options = flags.engine.options();
  LADDER_CHECK(!options.runner.device.is_cpu(), "graph-replay: the CPU has no graphs: expected a GPU");
  LADDER_CHECK(options.runner.cuda_graphs, "graph-replay: there are no graphs with --enforce-eager");
  options.enable_prefix_caching = false;
  options.runner.batch.max_num_seqs = flags.batch;
  // All prompts in the first step.
  options.runner.batch.max_num_batched_tokens =
      std::max(options.runner.batch.max_num_batched_tokens, flags.batch * flags.prompt_len);
  const ModelFolder folder = open_model_folder(options.model);
  const RunnerConfig config = resolved_runner_config(options, folder.spec);
  const std::unique_ptr<Engine> engine = load_engine_with_progress(options, folder);
  auto* const executor = dynamic_cast<LocalExecutor*>(&engine->executor());
  LADDER_CHECK(executor != nullptr,
               "graph-replay: a lane has no step that is replayed by itself: expected no "
               "--phase-lanes");

  // The window ends `steps` after the step that is replayed, and begins as long before it.
  const int64_t replayed = 2 * flags.steps + 2, longest = replayed + flags.steps;
  const auto middle = requests_of(flags, folder.spec.vocab_size, replayed);
  const auto window = requests_of(flags, folder.spec.vocab_size, longest);
  engine->generate(middle);  // warm
  std::vector<std::vector<std::string>> table{
      {"run", "engine step", "mean", "graph replay", "replay / step"}};
  Json results = Json::array();
  for (int64_t run = 0; run < flags.repeat; ++run) {
    const std::vector<double> steps = last_steps(*engine, window, 2 * flags.steps);
    engine->generate(middle);
    const double replay = executor->replay_last_step(100);
    const auto microseconds = [](double seconds) { return fmt::format("{:.1f} us", seconds * 1e6); };
    table.push_back({fmt::format("run {}", run + 1), microseconds(median(steps)), microseconds(mean(steps)),
                     microseconds(replay), fmt::format("{:.3f}", replay / mean(steps))});
    results.push_back({{"name", table.back()[0]},
                       {"batch", flags.batch},
                       {"step_seconds_mean", mean(steps)},
                       {"step_seconds_median", median(steps)},
                       {"replay_seconds", replay},
                       {"of_replay", replay / mean(steps)}});
  }
  write_report(flags.json, results, {config.device, config.threads, 0.0});
  write_out(fmt::format("{} requests, {} tokens each before the step that is replayed, on {}\n", flags.batch,
                        flags.prompt_len + replayed - 1, cuda_device_info(config.device.index).name) +
            format_table(table) +
            "engine step: median and mean of the steps around the one that is replayed 100 times.\n");
}

}  // namespace

RunCommand add_bench_graph_replay(CLI::App& app) {
  auto flags = std::make_shared<GraphReplayFlags>();
  const auto add = [&](const char* name, int64_t& value, int64_t high, const char* help) {
    app.add_option(name, value, help)->check(whole_in_range(1, high))->type_name("N")->capture_default_str();
  };
  add("--batch", flags->batch, 4096, "requests, decoded together");
  add("--prompt-len", flags->prompt_len, 1 << 16, "tokens of each prompt");
  add("--steps", flags->steps, 1 << 16, "steps measured on either side of the one that is replayed");
  add("--repeat", flags->repeat, 1000, "how often");
  app.add_option("--temperature", flags->temperature, "0 is greedy")
      ->check(in_range(0, 100))
      ->type_name("T")
      ->capture_default_str();
  app.add_option("--json", flags->json, "write the results to this file too")->type_name("FILE");
  flags->engine.add(app);
  return [flags] { run_graph_replay(*flags); };
}

}  // namespace ladder

// ladder bench progression: what each optimisation of the engine is worth, on one small workload.
#include <iterator>
#include <memory>

#include "cli/bench/bench.h"
#include "cli/bench/report.h"
#include "cli/bench/streaming_limit.h"
#include "cli/bench/workload.h"
#include "cli/engine_flags.h"
#include "cli/flag_values.h"
#include "cli/run_requests.h"
#include "cli/terminal.h"
#include "cli/tiny_model.h"
#include "step1_layers/core/error.h"

namespace ladder {

namespace {

struct ProgressionFlags {
  EngineFlags engine;
  Workload workload;
  std::string json;
};

struct Rung {
  const char* name;
  bool one_at_a_time = false;
  bool recompute_everything = false;
  bool static_batching = false;
  bool chunked_prefill = false;
  bool prefix_caching = false;
  // On a GPU.
  bool cuda_graphs = false;
  bool async_scheduling = false;
  bool dependent_launch = false;
  // Of a pipeline.
  bool full_pipeline = false;
};

constexpr Rung kRungs[] = {
    {.name = "every token recomputed", .one_at_a_time = true, .recompute_everything = true},
    {.name = "KV reuse", .one_at_a_time = true},
    {.name = "static batching", .static_batching = true},
    {.name = "continuous batching"},
    {.name = "chunked prefill", .chunked_prefill = true},
    {.name = "prefix caching", .chunked_prefill = true, .prefix_caching = true},
};

// Each on top of the last of the others. On the CPU there is nothing to capture, to overlap or to launch.
constexpr Rung kGpuRungs[] = {
    {.name = "CUDA graphs", .chunked_prefill = true, .prefix_caching = true, .cuda_graphs = true},
    {.name = "asynchronous scheduling",
     .chunked_prefill = true,
     .prefix_caching = true,
     .cuda_graphs = true,
     .async_scheduling = true},
    {.name = "dependent launch",
     .chunked_prefill = true,
     .prefix_caching = true,
     .cuda_graphs = true,
     .async_scheduling = true,
     .dependent_launch = true},
};

// The last rung is the one below with a batch in every stage; until then one at a time goes through the stages.
std::vector<Rung> rungs_for(const RunnerConfig& config) {
  std::vector<Rung> rungs(std::begin(kRungs), std::end(kRungs));
  if (!config.device.is_cpu()) rungs.insert(rungs.end(), std::begin(kGpuRungs), std::end(kGpuRungs));
  if (config.pipeline_parallel_size > 1) {
    rungs.push_back(rungs.back());
    rungs.back().name = "a batch in every stage";
    rungs.back().full_pipeline = true;
  }
  return rungs;
}

EngineOptions options_of(const Rung& rung, EngineOptions options) {
  if (rung.one_at_a_time) options.runner.batch.max_num_seqs = 1;
  // Prompts are computed whole until the rung that cuts them: the budget then has to hold the longest
  // sequence.
  if (!rung.chunked_prefill) options.runner.batch.max_num_batched_tokens = 0;
  options.recompute_everything = rung.recompute_everything;
  options.static_batching = rung.static_batching;
  options.enable_chunked_prefill = rung.chunked_prefill;
  options.enable_prefix_caching = rung.prefix_caching;
  options.runner.cuda_graphs = rung.cuda_graphs;
  options.runner.async_scheduling = rung.async_scheduling;
  options.runner.dependent_launch = rung.dependent_launch;
  options.runner.naive_pipeline = !rung.full_pipeline;
  return options;
}

void run_progression(const ProgressionFlags& flags) {
  check_report_file(flags.json);
  EngineOptions options = flags.engine.options();
  const ModelFolder folder = open_model_folder(options.model);
  const Workload& workload = flags.workload;
  const std::vector<Request> requests = make_requests(workload, folder.spec.vocab_size);
  if (options.runner.batch.max_model_len == 0)
    options.runner.batch.max_model_len =
        workload.shared_prefix_len + workload.max_prompt_len + workload.max_output_len;

  const Device device = options.runner.device;
  BenchMachine machine{device, 1, copy_bandwidth(device)};
  std::vector<Measurement> results;
  for (const Rung& rung : rungs_for(options.runner)) {
    const EngineOptions of_rung = options_of(rung, options);
    const RunnerConfig config = resolved_runner_config(of_rung, folder.spec);
    machine.threads = config.threads;
    const std::unique_ptr<Engine> engine = load_engine_with_progress(of_rung, folder);
    engine->generate(make_warm_up(workload, folder.spec.vocab_size, device));
    Measurement m = measure(*engine, requests, rung.name);
    if (machine.copy_bandwidth > 0.0)
      m.of_streaming_limit =
          streamed_bytes(requests, folder.spec, config, expected_share(folder.spec.experts)) /
          machine.copy_bandwidth / m.seconds;
    results.push_back(m);
  }
  write_report(flags.json, results, machine);

  std::vector<std::vector<std::string>> table{{"", "tok/s", "TTFT", "ITL", "longest ITL", "live KV"}};
  if (!device.is_cpu()) table[0].push_back("of limit");
  for (const Measurement& m : results) {
    table.push_back({m.name, fmt::format("{:.1f}", m.output_tokens_per_second()),
                     format_seconds(mean(m.time_to_first_token)), format_seconds(mean(m.inter_token_latency)),
                     format_seconds(m.inter_token_latency_max),
                     fmt::format("{:.0f} %", 100.0 * m.engine.kv_live_share())});
    if (!device.is_cpu()) table.back().push_back(fmt::format("{:.3f}", m.of_streaming_limit));
  }
  write_out(
      fmt::format(
          "{} requests at once, {} to {} prompt tokens of which {} are the same in all, {} to {} output "
          "tokens\n",
          requests.size(), workload.shared_prefix_len + workload.min_prompt_len,
          workload.shared_prefix_len + workload.max_prompt_len, workload.shared_prefix_len,
          workload.min_output_len, workload.max_output_len) +
      format_table(table) +
      "tok/s: output tokens per second of all requests. TTFT: mean time to first token, waiting included. "
      "ITL: mean "
      "time\nbetween two tokens of a request. live KV: share of the reserved KV slots that hold a token "
      "still "
      "needed.\n" +
      (device.is_cpu()
           ? std::string()
           : fmt::format("{}. of limit: the time in which it could read the weights and the cache at {:.0f} "
                         "GB/s, its copy bandwidth,\nover the time it took.\n",
                         cuda_device_info(device.index).name, machine.copy_bandwidth * 1e-9)));
}

}  // namespace

RunCommand add_bench_progression(CLI::App& app) {
  auto flags = std::make_shared<ProgressionFlags>();
  Workload& workload = flags->workload;
  workload = {.num_requests = 24,
              .shared_prefix_len = 96,
              .min_prompt_len = 16,
              .max_prompt_len = 96,
              .min_output_len = 8,
              .max_output_len = 96};
  const auto add = [&](const char* name, int64_t& value, int64_t min, const char* help) {
    app.add_option(name, value, help)
        ->check(whole_in_range(min, 1 << 24))
        ->type_name("N")
        ->capture_default_str();
  };
  add("--num-requests", workload.num_requests, 1, "requests, all there from the start");
  add("--shared-prefix-len", workload.shared_prefix_len, 0, "tokens that all prompts begin with");
  add("--min-prompt-len", workload.min_prompt_len, 1, "tokens of a prompt of its own: uniform from this ...");
  add("--max-prompt-len", workload.max_prompt_len, 1, "... to this");
  add("--min-output-len", workload.min_output_len, 1, "output lengths are uniform from this ...");
  add("--max-output-len", workload.max_output_len, 1, "... to this (end tokens are ignored)");
  app.add_option("--seed", workload.seed, "of lengths, ids and sampling")
      ->check(whole_in_range(0, std::numeric_limits<int64_t>::max()))
      ->type_name("S")
      ->capture_default_str();
  app.add_option("--json", flags->json, "write the results to this file too")->type_name("FILE");
  RunnerConfig defaults;
  defaults.batch.max_num_seqs = 8;
  defaults.batch.max_num_batched_tokens = 64;
  flags->engine.add(app, defaults, tiny_model_folder());
  return [flags] { run_progression(*flags); };
}

}  // namespace ladder

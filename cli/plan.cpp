// ladder plan: how many instances for prompts and for answers, or none of either, by step times, which it measures too.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/bench/report.h"
#include "cli/commands.h"
#include "cli/engine_flags.h"
#include "cli/flag_values.h"
#include "cli/run_requests.h"
#include "cli/terminal.h"
#include "cli/tiny_model.h"
#include "step1_layers/core/cpu_features.h"
#include "step1_layers/core/error.h"
#include "step4_runner/memory.h"
#include "step8_advanced/disaggregation/planner/cluster_simulation.h"
#include "step8_advanced/disaggregation/planner/measure_steps.h"
#include "step8_advanced/disaggregation/planner/plan.h"
#include "step8_advanced/disaggregation/planner/planned_requests.h"
#include "step8_advanced/disaggregation/planner/step_times.h"

namespace ladder {

namespace {

struct PlanFlags {
  std::string step_times, requests, json, token_times;
  bool measure = false;
  EngineFlags engine;
  std::vector<const CLI::Option*> of_engine;
  double request_rate = 0;
  RequestShape shape;
  int64_t num_requests = 1000;
  double ttft_ms = 1000, tpot_ms = 50, gap_ms = 0, share = 0.9;
  int num_gpus = 2;
  double link_gb = 50, link_latency_ms = 0.1;
  bool layer_by_layer = false, simulate = false;
  std::vector<int64_t> chunks = PlanProblem{}.chunks;
  uint64_t seed = 0;
};

std::string ms(double seconds) {
  return fmt::format("{:.1f} ms", seconds * 1e3);
}

PlanProblem problem_of(const PlanFlags& flags, const StepTimes& times, std::vector<std::string>& fits) {
  PlanProblem problem;
  if (!flags.requests.empty()) {
    problem.requests = load_requests(flags.requests);
    problem.rate = flags.request_rate > 0 ? flags.request_rate : rate_of(problem.requests);
    problem.requests = at_rate(problem.requests, problem.rate);
  } else {
    LADDER_CHECK(flags.request_rate > 0, "--request-rate: expected a rate, or --requests FILE");
    problem.rate = flags.request_rate;
    problem.requests = draw_requests(flags.num_requests, problem.rate, flags.shape, flags.seed);
  }
  problem.level = {flags.ttft_ms * 1e-3, flags.tpot_ms * 1e-3, flags.gap_ms * 1e-3, flags.share};
  problem.num_gpus = flags.num_gpus;
  for (const MeasuredEngine& engine : times.engines) {
    const FittedSteps fitted = fit_step_times(engine.steps);
    problem.engines.push_back(
        {engine.tensor_parallel_size, fitted.model, engine.num_kv_tokens, engine.max_num_seqs});
    fits.push_back(fmt::format("TP {}: {} rows, error {:.1f} % in the mean, {:.1f} % at the worst",
                               engine.tensor_parallel_size, engine.steps.size(), 100 * fitted.mean_error,
                               100 * fitted.worst_error));
  }
  problem.kv_bytes_per_token = times.kv_bytes_per_token;
  problem.num_layers = times.num_layers;
  problem.link = {flags.link_gb * 1e9, flags.link_latency_ms * 1e-3, flags.layer_by_layer};
  problem.chunks = flags.chunks;
  std::ranges::sort(problem.chunks);
  return problem;
}

// When every request gets its tokens, deployment by deployment, at the problem's rate.
Json token_times(const PlanProblem& problem, const Plan& plan, ClusterOptions options) {
  Json rows = Json::array();
  for (const PlannedCandidate& candidate : plan.candidates) {
    std::vector<TokenTime> tokens;
    options.tokens = &tokens;
    simulate_cluster(problem, candidate.deployment, options);
    Json times = Json::array();
    for (const TokenTime& token : tokens) times.push_back({token.request, token.time});
    rows.push_back({{"name", describe(candidate.deployment)}, {"request_and_seconds", std::move(times)}});
  }
  return rows;
}

// Writes the file, or of one that is there the rows of this size of an engine.
void measure_step_times(const PlanFlags& flags) {
  EngineOptions options = flags.engine.options();
  options.enable_prefix_caching = false;  // every run computes its prompts
  const ModelFolder folder = open_model_folder(options.model);
  const RunnerConfig config = resolved_runner_config(options, folder.spec);
  StepTimes times;
  if (std::filesystem::exists(flags.step_times)) times = load_step_times(flags.step_times);
  const auto expect_same = [&](auto& field, const auto& now, const char* name) {
    LADDER_CHECK(times.engines.empty() || field == now,
                 "--step-times {}: its {} is {}, expected {}, or another file", flags.step_times, name, field,
                 now);
    field = now;
  };
  const std::string device = config.device.is_cpu() ? fmt::format("{} thread{} of {}", config.threads,
                                                                  config.threads == 1 ? "" : "s", cpu_name())
                                                    : cuda_device_info(config.device.index).name;
  const std::filesystem::path name = std::filesystem::weakly_canonical(options.model).filename();
  expect_same(times.model, fmt::format("{}, {}", name.string(), dtype_name(config.dtype)), "model");
  expect_same(times.device, device, "device");
  expect_same(times.kv_bytes_per_token, kv_bytes_per_token(folder.spec, config), "kv_bytes_per_token");
  expect_same(times.num_layers, int64_t{folder.spec.num_layers}, "num_layers");
  times.command = command_of_this_process();
  std::erase_if(times.engines, [&](const MeasuredEngine& engine) {
    return engine.tensor_parallel_size == config.tensor_parallel_size;
  });
  const std::unique_ptr<Engine> engine = load_engine_with_progress(options, folder);
  LADDER_CHECK(!engine->scheduler().config().phase_lanes,
               "--measure and --phase-lanes: steps are measured one by one, expected one of them");
  MeasuredSizes sizes;
  if (!config.device.is_cpu()) {  // where attention's share is large enough to be seen
    sizes.longest_prompt = 16384;
    sizes.most_prompt_tokens = 65536;
  }
  times.engines.push_back(measure_steps(*engine, config.tensor_parallel_size, sizes));
  std::ranges::sort(times.engines, {}, &MeasuredEngine::tensor_parallel_size);
  save_step_times(flags.step_times, times);

  const MeasuredEngine& measured =
      *std::ranges::find(times.engines, config.tensor_parallel_size, &MeasuredEngine::tensor_parallel_size);
  const FittedSteps fitted = fit_step_times(measured.steps);
  std::vector<std::vector<std::string>> table{{"steps", "a step, measured", "by the fit"}};
  for (const MeasuredSteps& row : measured.steps) {
    const auto count = static_cast<double>(row.num_steps);
    const double others = fitted.model.seconds(row.work) + (count - 1) * fitted.model.fixed;
    table.push_back({row.source, ms(row.seconds / count), ms(others / count)});
  }
  write_out(format_table(table));
}

void run_plan(const PlanFlags& flags) {
  if (flags.measure) {
    measure_step_times(flags);
    if (flags.request_rate == 0 && flags.requests.empty()) return;
    write_out("\n");
  }
  for (const CLI::Option* option : flags.of_engine)
    LADDER_CHECK(flags.measure || option->count() == 0, "{}: expected with --measure", option->get_name());
  check_report_file(flags.json);
  check_report_file(flags.token_times);
  const StepTimes times = load_step_times(flags.step_times);
  std::vector<std::string> fits;
  const PlanProblem problem = problem_of(flags, times, fits);
  const Plan plan = make_plan(problem);
  const ClusterOptions options{.block_size = plan.block_size, .seed = flags.seed};
  const bool is_split = plan.chosen.kind == DeploymentKind::disaggregated;

  std::vector<std::pair<std::string, std::string>> lines{
      {"model", times.model + ", " + times.device},
      {"plan", describe(plan.chosen)},
      {"why", plan.reason},
      {"goodput", fmt::format("{:.2f} requests/s ({:.3f} a GPU)", plan.goodput,
                              plan.goodput / static_cast<double>(problem.num_gpus))},
      {"KV blocks of", fmt::format("{} tokens", plan.block_size)},
      {"at the rate asked for",
       plan.at_rate.stable
           ? fmt::format(
                 "{:.1f} % within the level at {:.2f} requests/s; time to first token {} for {:.0f} % "
                 "of them, {} a token",
                 100 * plan.at_rate.attained, problem.rate, ms(plan.at_rate.ttft), 100 * problem.level.share,
                 ms(plan.at_rate.tpot_mean))
           : fmt::format("{:.2f} requests/s are more than it can answer", problem.rate)}};
  if (plan.prefill_needed > 0)
    lines.push_back({"if split, needs",
                     fmt::format("{} for prompts, {} for answers", plan.prefill_needed, plan.decode_needed)});
  if (is_split) {
    lines.push_back({"link in use", fmt::format("{:.0f} %{}", 100 * plan.at_rate.link_utilisation,
                                                plan.at_rate.link_utilisation > 0.7 ? ", too much" : "")});
    lines.push_back(
        {"kept for readers", fmt::format("{:.0f} blocks, in the mean",
                                         plan.at_rate.pinned_tokens / static_cast<double>(plan.block_size))});
  }
  for (const std::string& fit : fits) lines.push_back({"step times", fit});
  std::string text = format_pairs(lines) + "\n";

  std::vector<std::vector<std::string>> table{{"deployment", "goodput, predicted"}};
  if (flags.simulate) table[0].push_back("simulated");
  Json rows = Json::array();
  double best = 0, of_chosen = 0;
  for (const PlannedCandidate& candidate : plan.candidates) {
    const std::string name = describe(candidate.deployment);
    table.push_back({name, fmt::format("{:.2f}", candidate.goodput)});
    rows.push_back({{"name", name},
                    {"predicted_goodput", candidate.goodput},
                    {"chosen", name == describe(plan.chosen)}});
    if (!flags.simulate) continue;
    const double simulated = simulated_goodput(problem, candidate.deployment,
                                               std::max(candidate.goodput, 0.01 * plan.goodput), options);
    best = std::max(best, simulated);
    if (name == describe(plan.chosen)) of_chosen = simulated;
    table.back().push_back(fmt::format("{:.2f}", simulated));
    rows.back()["simulated_goodput"] = simulated;
  }
  text += format_table(table);
  if (flags.simulate && best > 0)
    text += fmt::format("Simulated, the plan has {:.2f} of the best goodput of all.\n", of_chosen / best);
  write_report(flags.json, rows, {});
  if (!flags.token_times.empty()) write_report(flags.token_times, token_times(problem, plan, options), {});
  write_out(text);
}

}  // namespace

RunCommand add_plan_command(CLI::App& app) {
  auto flags = std::make_shared<PlanFlags>();
  app.add_option("--step-times", flags->step_times, "measured steps of the engines, JSON")
      ->required()
      ->type_name("FILE");
  app.add_flag(
      "--measure", flags->measure,
      "write that file first: the steps of the engine that --model and the like describe, of one size "
      "(--tensor-parallel-size); other sizes in the file stay");
  app.add_option("--requests", flags->requests,
                 "who comes: a line each of arrival, prompt_tokens, output_tokens, cached_share")
      ->type_name("FILE");
  app.add_option("--request-rate", flags->request_rate,
                 "requests a second; of a file: in place of its own rate")
      ->check(above_zero(1e6))
      ->type_name("X");
  const auto length = [&](const char* name, int64_t& value, const char* help) {
    app.add_option(name, value, help)
        ->check(whole_in_range(1, 1 << 20))
        ->type_name("N")
        ->capture_default_str();
  };
  length("--prompt-len", flags->shape.prompt, "tokens of a prompt, in the mean");
  length("--output-len", flags->shape.output, "tokens of an answer, in the mean");
  app.add_option("--length-spread", flags->shape.spread,
                 "both are uniform in mean * (1 - X) to mean * (1 + X)")
      ->check(in_range(0, 1))
      ->type_name("X")
      ->capture_default_str();
  app.add_option("--hit-rate", flags->shape.hit_rate, "share of a prompt that the prefix cache has")
      ->check(in_range(0, 1))
      ->type_name("X")
      ->capture_default_str();
  app.add_option("--num-requests", flags->num_requests, "how many are drawn")
      ->check(whole_in_range(2, 100'000))
      ->type_name("N")
      ->capture_default_str();
  const auto level = [&](const char* name, double& value, const char* help) {
    app.add_option(name, value, help)->check(above_zero(1e9))->type_name("MS")->capture_default_str();
  };
  level("--ttft", flags->ttft_ms, "milliseconds to the first token that are promised");
  level("--tpot", flags->tpot_ms, "milliseconds a token, in the mean over an answer");
  app.add_option("--max-gap", flags->gap_ms, "milliseconds between any two tokens; absent: not promised")
      ->check(above_zero(1e9))
      ->type_name("MS");
  app.add_option("--slo-share", flags->share, "of the requests that must get it")
      ->check(in_range(0.01, 0.999))
      ->type_name("X")
      ->capture_default_str();
  app.add_option("--gpus", flags->num_gpus, "to share out")
      ->check(whole_in_range(1, 64))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--link-rate", flags->link_gb, "GB/s out of an instance, and into one")
      ->check(above_zero(1e6))
      ->type_name("X")
      ->capture_default_str();
  app.add_option("--link-latency", flags->link_latency_ms, "milliseconds of each transfer besides its bytes")
      ->check(in_range(0, 1e6))
      ->type_name("MS")
      ->capture_default_str();
  app.add_flag("--layer-by-layer", flags->layer_by_layer, "keys travel while later layers are computed");
  app.add_option("--chunk", flags->chunks,
                 "values of --max-num-batched-tokens to choose from, with commas between")
      ->delimiter(',')
      ->check(whole_in_range(1, 1 << 20))
      ->type_name("N")
      ->capture_default_str();
  app.add_flag("--simulate", flags->simulate,
               "check all candidates by simulation, with the engine's scheduler");
  app.add_option("--seed", flags->seed, "of arrivals and lengths")->type_name("N")->capture_default_str();
  app.add_option("--json", flags->json, "write the candidates to this file too")->type_name("FILE");
  app.add_option(
         "--token-times", flags->token_times,
         "simulate all candidates at the rate asked for, and write when each request gets its tokens to this file")
      ->type_name("FILE");
  const auto num_own = static_cast<std::ptrdiff_t>(app.get_options().size());
  flags->engine.add(app, {}, tiny_model_folder());
  const std::vector<CLI::Option*> all = app.get_options();
  flags->of_engine.assign(all.begin() + num_own, all.end());
  return [flags] { run_plan(*flags); };
}

}  // namespace ladder

// ladder bench throughput and latency.
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "cli/bench/bench.h"
#include "cli/bench/ranks_report.h"
#include "cli/bench/report.h"
#include "cli/bench/streaming_limit.h"
#include "cli/bench/touched_experts.h"
#include "cli/bench/workload.h"
#include "cli/bench/workload_flags.h"
#include "cli/engine_flags.h"
#include "cli/flag_values.h"
#include "cli/make_client.h"
#include "cli/run_requests.h"
#include "cli/terminal.h"
#include "cli/trace_flags.h"
#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step4_runner/rank_grid.h"

namespace ladder {

namespace {

constexpr double kMaxLength = 1 << 24;

struct ThroughputFlags {
  EngineFlags engine;
  DataParallelFlags replicas;
  WorkloadFlags workload;
  bool communication_share = false;
  bool count_experts = false;
  const CLI::Option* phase_lanes = nullptr;  // of the engine's flags
  TraceFlags trace;
  std::string json;
};

// Error: a session that grows longer than a sequence may be.
void check_room(const SessionLoad& load, int64_t max_model_len) {
  const int64_t longest = longest_session(load.sessions);
  LADDER_CHECK(longest <= max_model_len,
               "a session of the workload has {} tokens at its end; --max-model-len is {}", longest,
               max_model_len);
}

int64_t count_output_tokens(const std::vector<EngineStats>& replicas) {
  int64_t count = 0;
  for (const EngineStats& stats : replicas) count += stats.metrics.num_output_tokens;
  return count;
}

// When they have counted so many output tokens: a stream ends before its engine's turn does, and numbers are told after it.
// Not later than a second: of one that has died meanwhile they are lost.
std::vector<EngineStats> replica_stats(EngineClient& client, int64_t num_output_tokens) {
  std::vector<EngineStats> replicas = client.replica_stats();
  for (int i = 0; i < 100 && count_output_tokens(replicas) < num_output_tokens; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    replicas = client.replica_stats();
  }
  return replicas;
}

// Of several replicas behind their door, and of sessions, whose turns follow on each other's answers.
void run_through_client(const ThroughputFlags& flags) {
  check_report_file(flags.json);
  const EngineOptions options = flags.engine.options(&flags.replicas);
  const ModelFolder folder = open_model_folder(options.model);
  const bool has_door = flags.replicas.has_door(), has_sessions = flags.workload.has_sessions();
  const int num_replicas = flags.replicas.range().num_local;
  std::vector<Request> requests;
  SessionLoad load;
  if (has_sessions) {
    load = flags.workload.sessions(folder.spec.vocab_size);
    check_room(load, resolved_runner_config(options, folder.spec).batch.max_model_len);
  } else {
    requests = make_requests(flags.workload.requests(), folder.spec.vocab_size);
  }
  const BenchMachine machine{options.runner.device,
                             options.runner.threads > 0 ? options.runner.threads : num_threads(),
                             copy_bandwidth(options.runner.device)};
  const MadeClient made = make_client(
      {.engine = flags.engine, .replicas = flags.replicas, .trace = flags.trace}, options, folder);
  check_room(load, made.config.batch.max_model_len);  // less, where a replica's cache holds less
  const std::vector<Request> warm_up =
      make_warm_up(flags.workload.requests(), folder.spec.vocab_size, machine.device);
  int64_t num_warm_up_tokens = 0;
  for (int i = 0; i < num_replicas && !warm_up.empty(); ++i)
    num_warm_up_tokens += measure(*made.client, warm_up, "warm-up").engine.num_output_tokens;
  const std::vector<EngineStats> before = replica_stats(*made.client, num_warm_up_tokens);
  const Measurement m = has_sessions ? measure(*made.client, load, "throughput")
                                     : measure(*made.client, requests, "throughput");
  write_report(flags.json, {m}, machine);
  std::vector<std::vector<std::string>> table{
      {"replica", "output tokens", "prompt tokens found in the cache", "most sequences in a step"}};
  const std::vector<EngineStats> after =
      replica_stats(*made.client, num_warm_up_tokens + m.engine.num_output_tokens);
  for (size_t i = 0; i < after.size(); ++i)
    table.push_back({std::to_string(i),
                     format_count(after[i].metrics.num_output_tokens - before[i].metrics.num_output_tokens),
                     format_count(after[i].metrics.num_cached_tokens - before[i].metrics.num_cached_tokens),
                     format_count(after[i].metrics.peak_running)});
  std::vector<std::pair<std::string, std::string>> lines;
  if (has_door)
    lines.push_back({"replicas", fmt::format("{}, balanced by {}", num_replicas, flags.replicas.balancer())});
  if (has_sessions) lines.push_back({"sessions", flags.workload.sessions_text()});
  const std::vector<std::pair<std::string, std::string>> of_all{
      {has_sessions ? "turns" : "requests", format_count(m.engine.num_requests_finished)},
      {"prompt tokens", format_count(m.engine.num_prompt_tokens)},
      {"output tokens", format_count(m.engine.num_output_tokens)},
      {"time", format_seconds(m.seconds)},
      {"output tokens/s", fmt::format("{:.1f}", m.output_tokens_per_second())},
      {"prompt and output tokens/s", fmt::format("{:.1f}", m.total_tokens_per_second())},
      {"prompt tokens found in the cache", fmt::format("{:.1f} %", 100 * m.engine.prefix_hit_rate())},
      {"time to first token, median", format_seconds(percentile(m.time_to_first_token, 0.5))},
      {"time to first token, 99 %", format_seconds(percentile(m.time_to_first_token, 0.99))},
      {"inter-token latency, mean", format_seconds(mean(m.inter_token_latency))},
      {"preemptions", format_count(m.engine.num_preemptions)}};
  lines.insert(lines.end(), of_all.begin(), of_all.end());
  write_out(format_pairs(lines) + (has_door ? "\n" + format_table(table) : ""));
}

// Null without the flag.
std::unique_ptr<TouchedExperts> experts_to_count(bool wanted, const DecoderSpec& spec,
                                                 const RunnerConfig& config) {
  return wanted ? std::make_unique<TouchedExperts>(spec, config) : nullptr;
}

// Counting is no part of what lanes may do at once.
template <class Flags>
void expect_one_lane(const Flags& flags) {
  LADDER_CHECK(
      !flags.count_experts || flags.phase_lanes->count() == 0,
      "--count-experts and --phase-lanes: experts are counted by one step at a time, expected one of "
      "them");
}

// The requests once more, by an engine that counts; the one that was measured has ended.
void count(TouchedExperts& touched, EngineOptions options, const ModelFolder& folder,
           const std::vector<Request>& warm_up, const std::vector<Request>& requests) {
  touched.count_in(options);
  const std::unique_ptr<Engine> engine = load_engine_with_progress(options, folder);
  engine->generate(warm_up);
  touched.start();
  measure(*engine, requests, "counting experts");
}

TouchedShare share_of(const TouchedExperts* touched, const ExpertsSpec& experts) {
  if (touched == nullptr) return expected_share(experts);
  return [touched](int64_t tokens) { return touched->share(tokens); };
}

std::pair<std::string, std::string> describe_touched(double touched, const ExpertsSpec& experts) {
  return {"experts that a layer's tokens touched, mean of its calls",
          fmt::format("{:.1f} of {}", touched, experts.num_experts)};
}

void run_throughput(const ThroughputFlags& flags) {
  flags.workload.check();
  LADDER_CHECK(!flags.communication_share || !(flags.replicas.has_door() || flags.workload.has_sessions()),
               "--communication-share: expected one engine and --workload independent");
  LADDER_CHECK(!flags.count_experts || !(flags.replicas.has_door() || flags.workload.has_sessions()),
               "--count-experts: expected one engine and --workload independent");
  expect_one_lane(flags);
  if (flags.replicas.has_door() || flags.workload.has_sessions()) return run_through_client(flags);
  check_report_file(flags.json);
  const std::shared_ptr<TraceWriter> trace = flags.trace.open();
  const EngineOptions options = flags.engine.options();
  if (flags.communication_share)
    options_of_a_rank(options);  // says what is wrong before anything long is run
  const ModelFolder folder = open_model_folder(options.model);
  const std::vector<Request> requests = make_requests(flags.workload.requests(), folder.spec.vocab_size);
  const MachineMemory memory = memory_of(options.runner.device);
  const RunnerConfig config = resolved_runner_config(options, folder.spec, memory);
  const std::unique_ptr<TouchedExperts> touched = experts_to_count(flags.count_experts, folder.spec, config);
  const BenchMachine machine{config.device, config.threads, copy_bandwidth(config.device)};
  const std::vector<Request> warm_up =
      make_warm_up(flags.workload.requests(), folder.spec.vocab_size, config.device);
  std::unique_ptr<Engine> engine = load_engine_with_progress(options, folder);
  engine->generate(warm_up);
  record_if_wanted(*engine, trace);
  Measurement m = measure(*engine, requests, "throughput");
  const int64_t num_kv_blocks = engine->scheduler().config().batch.num_kv_blocks;
  engine.reset();
  if (touched != nullptr) {
    count(*touched, options, folder, warm_up, requests);
    m.touched_experts = touched->mean_experts();
  }
  if (machine.copy_bandwidth > 0.0)
    m.of_streaming_limit =
        streamed_bytes(requests, folder.spec, config, share_of(touched.get(), folder.spec.experts)) /
        machine.copy_bandwidth / m.seconds;
  write_report(flags.json, {m}, machine);
  std::vector<std::pair<std::string, std::string>> lines = {
      {"requests", format_count(m.engine.num_requests_finished)},
      {"prompt tokens", format_count(m.engine.num_prompt_tokens)},
      {"output tokens", format_count(m.engine.num_output_tokens)},
      {"time", format_seconds(m.seconds)},
      {"output tokens/s", fmt::format("{:.1f}", m.output_tokens_per_second())},
      {"prompt and output tokens/s", fmt::format("{:.1f}", m.total_tokens_per_second())},
      {"time to first token, median", format_seconds(percentile(m.time_to_first_token, 0.5))},
      {"time to first token, 99 %", format_seconds(percentile(m.time_to_first_token, 0.99))},
      {"inter-token latency, mean", format_seconds(mean(m.inter_token_latency))},
      {"inter-token latency, longest", format_seconds(m.inter_token_latency_max)},
      {"most sequences in a step", format_count(m.engine.peak_running)},
      {"most KV blocks in use",
       fmt::format("{} of {}", format_count(m.engine.peak_kv_blocks), format_count(num_kv_blocks))},
      {"preemptions", format_count(m.engine.num_preemptions)},
  };
  if (config.device.is_cpu() ||
      !config.async_scheduling) {  // else steps overlap, and their times add up to more
    const auto share = [&](const char* name, double seconds) {
      lines.push_back({name, fmt::format("{:.1f} %", 100.0 * seconds / m.seconds)});
    };
    if (m.engine.num_prefill_steps == 0) {
      share("share of time in the executor", m.engine.execute_seconds);
    } else {  // of --phase-lanes
      share("share of time in the executor of prompts", m.engine.prefill_execute_seconds);
      share("share of time in the executor of answers", m.engine.decode_execute_seconds);
    }
  }
  if (touched != nullptr) lines.push_back(describe_touched(m.touched_experts, folder.spec.experts));
  if (machine.copy_bandwidth > 0.0) {
    lines.push_back({"GPU", cuda_device_info(config.device.index).name});
    lines.push_back({"copy bandwidth", fmt::format("{:.0f} GB/s", machine.copy_bandwidth * 1e-9)});
    lines.push_back({"of the limit of reading weights and cache at that rate",
                     fmt::format("{:.2f}", m.of_streaming_limit)});
  }
  for (auto& line : describe_shares(config, m)) lines.push_back(std::move(line));
  if (flags.communication_share)
    lines.push_back(
        describe_communication(m.seconds, measure_a_rank(options, folder, warm_up, requests).seconds));
  std::string text = format_pairs(lines);
  if (num_ranks(config) > 1)
    text += "\nWhat fits, as predicted for this machine\n" +
            describe_capacities(rank_capacities(options, folder.spec, memory));
  write_out(text);
}

struct LatencyFlags {
  EngineFlags engine;
  int64_t prompt_len = 128;
  int64_t output_len = 128;
  int64_t repeat = 3;
  bool communication_share = false;
  bool count_experts = false;
  const CLI::Option* phase_lanes = nullptr;  // of the engine's flags
  TraceFlags trace;
  std::string json;
};

void run_latency(const LatencyFlags& flags) {
  expect_one_lane(flags);
  check_report_file(flags.json);
  const std::shared_ptr<TraceWriter> trace = flags.trace.open();
  EngineOptions options = flags.engine.options();
  if (flags.communication_share) options_of_a_rank(options);
  options.enable_prefix_caching = false;  // every repetition computes its prompt
  options.runner.batch.max_num_seqs = 1;
  const ModelFolder folder = open_model_folder(options.model);
  Workload workload;
  workload.num_requests = 1;
  workload.min_prompt_len = workload.max_prompt_len = flags.prompt_len;
  workload.min_output_len = workload.max_output_len = flags.output_len;
  workload.temperature = 0.0;
  const std::vector<Request> requests = make_requests(workload, folder.spec.vocab_size);
  const RunnerConfig config = resolved_runner_config(options, folder.spec);
  const BenchMachine machine{config.device, config.threads, copy_bandwidth(config.device)};
  const std::unique_ptr<TouchedExperts> touched = experts_to_count(flags.count_experts, folder.spec, config);
  const std::vector<Request> warm_up = make_warm_up(workload, folder.spec.vocab_size, config.device);
  std::unique_ptr<Engine> engine = load_engine_with_progress(options, folder);
  engine->generate(warm_up);
  record_if_wanted(*engine, trace);

  std::vector<Measurement> results;
  for (int64_t i = 0; i < flags.repeat; ++i)
    results.push_back(measure(*engine, requests, fmt::format("run {}", i + 1)));
  const std::vector<std::pair<std::string, std::string>> shares = describe_shares(config, results.back());
  engine.reset();
  if (touched != nullptr) count(*touched, options, folder, warm_up, requests);
  const double weights =
      streamed_weight_bytes(folder.spec, config, share_of(touched.get(), folder.spec.experts), 1);

  std::vector<std::vector<std::string>> table{
      {"run", "time to first token", "prompt tokens/s", "time per token", "longest", "output tokens/s"}};
  if (machine.copy_bandwidth > 0.0) table[0].push_back("of the limit");
  for (Measurement& m : results) {
    const double first = m.time_to_first_token[0], each = mean(m.inter_token_latency);
    table.push_back({m.name, format_seconds(first),
                     fmt::format("{:.1f}", static_cast<double>(flags.prompt_len) / first),
                     format_seconds(each), format_seconds(m.inter_token_latency_max),
                     each > 0.0 ? fmt::format("{:.1f}", 1.0 / each) : "-"});
    if (touched != nullptr) m.touched_experts = touched->mean_experts();
    if (machine.copy_bandwidth > 0.0) {
      if (each > 0.0) m.of_streaming_limit = weights / machine.copy_bandwidth / each;
      table.back().push_back(each > 0.0 ? fmt::format("{:.2f}", m.of_streaming_limit) : "-");
    }
  }
  write_report(flags.json, results, machine);
  std::string text = fmt::format("{} prompt tokens, {} output tokens\n", flags.prompt_len, flags.output_len) +
                     format_table(table);
  for (const auto& [what, share] : shares) text += fmt::format("{}: {}\n", what, share);
  if (touched != nullptr) {
    const auto& [what, number] = describe_touched(touched->mean_experts(), folder.spec.experts);
    text += fmt::format("{}: {}\n", what, number);
  }
  if (flags.communication_share) {
    const Measurement alone = measure_a_rank(options, folder, warm_up, requests);
    const auto& [what, share] =
        describe_communication(mean(results.back().inter_token_latency), mean(alone.inter_token_latency));
    text += fmt::format("{}: {}\n", what, share);
  }
  if (machine.copy_bandwidth > 0.0)
    text += fmt::format(
        "{}. The limit: reading {} of weights for every token at {:.0f} GB/s, the copy bandwidth measured "
        "here.\n",
        cuda_device_info(config.device.index).name, format_bytes(static_cast<int64_t>(weights)),
        machine.copy_bandwidth * 1e-9);
  write_out(text);
}

}  // namespace

RunCommand add_bench_throughput(CLI::App& app) {
  auto flags = std::make_shared<ThroughputFlags>();
  flags->workload.add(app);
  app.add_flag(
      "--communication-share", flags->communication_share,
      "of tensor-parallel ranks on GPUs: run the requests once more by one rank's share of the model alone");
  app.add_flag(
      "--count-experts", flags->count_experts,
      "of a model with experts on one rank: run the requests once more and count the experts that they touch; the "
      "limit is computed from that");
  app.add_option("--json", flags->json, "write the result to this file too")->type_name("FILE");
  flags->trace.add(app);
  flags->engine.add(app);
  flags->phase_lanes = app.get_option("--phase-lanes");
  flags->replicas.add(app);
  return [flags] { run_throughput(*flags); };
}

RunCommand add_bench_latency(CLI::App& app) {
  auto flags = std::make_shared<LatencyFlags>();
  const auto add = [&](const char* name, int64_t& value, const char* help) {
    app.add_option(name, value, help)
        ->check(whole_in_range(1, kMaxLength))
        ->type_name("N")
        ->capture_default_str();
  };
  add("--prompt-len", flags->prompt_len, "tokens of the prompt");
  add("--output-len", flags->output_len, "tokens to generate");
  add("--repeat", flags->repeat, "how often");
  app.add_flag(
      "--communication-share", flags->communication_share,
      "of tensor-parallel ranks on GPUs: run the requests once more by one rank's share of the model alone");
  app.add_flag(
      "--count-experts", flags->count_experts,
      "of a model with experts on one rank: run the requests once more and count the experts that they touch; the "
      "limit is computed from that");
  app.add_option("--json", flags->json, "write the results to this file too")->type_name("FILE");
  flags->trace.add(app);
  flags->engine.add(app);
  flags->phase_lanes = app.get_option("--phase-lanes");
  return [flags] { run_latency(*flags); };
}

}  // namespace ladder

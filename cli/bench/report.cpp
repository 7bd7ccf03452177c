#include "cli/bench/report.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>

#include "cli/run_requests.h"
#include "cli/terminal.h"
#include "step1_layers/core/cpu_features.h"
#include "step1_layers/core/error.h"
#include "step2_model/json.h"

namespace ladder {

namespace {

std::string first_line(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

// What LADDER_COMMIT says (tools/gpu_check.sh), else the commit of the checkout that holds this program:
// .git/HEAD of the nearest folder above it. Empty: none.
std::string commit_of_this_program() {
  if (const char* said = std::getenv("LADDER_COMMIT")) return said;
  std::error_code none;
  std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", none).parent_path();
  while (!folder.empty() && !std::filesystem::exists(folder / ".git" / "HEAD", none)) {
    if (folder == folder.parent_path()) return {};
    folder = folder.parent_path();
  }
  const std::filesystem::path git = folder / ".git";
  const std::string head = first_line(git / "HEAD");
  if (!head.starts_with("ref: ")) return head;
  const std::string ref = head.substr(5);
  if (std::filesystem::exists(git / ref, none)) return first_line(git / ref);
  std::ifstream packed(git / "packed-refs");
  for (std::string line; std::getline(packed, line);)
    if (line.ends_with(" " + ref)) return line.substr(0, line.find(' '));
  return {};
}

}  // namespace

double mean(const std::vector<double>& values) {
  return values.empty()
             ? 0.0
             : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double Measurement::output_tokens_per_second() const {
  return static_cast<double>(engine.num_output_tokens) / seconds;
}

double Measurement::total_tokens_per_second() const {
  return static_cast<double>(engine.num_prompt_tokens + engine.num_output_tokens) / seconds;
}

void Measurement::add_latencies(const RequestMetrics& request) {
  time_to_first_token.push_back(request.time_to_first_token);
  if (request.num_output_tokens > 1) inter_token_latency.push_back(request.inter_token_latency_mean);
  inter_token_latency_max = std::max(inter_token_latency_max, request.inter_token_latency_max);
}

Measurement measure(Engine& engine, const std::vector<Request>& requests, const std::string& name) {
  Measurement measurement;
  measurement.name = name;
  int64_t total = 0, done = 0;
  const int64_t limit = engine.scheduler().config().batch.max_model_len;
  for (const Request& request : requests) {
    const int64_t length =
        static_cast<int64_t>(request.prompt_token_ids.size()) + *request.sampling.max_tokens;
    LADDER_CHECK(length <= limit,
                 "a request of the workload has {} tokens, prompt and output; --max-model-len is {}", length,
                 limit);
    total += *request.sampling.max_tokens;
  }
  ProgressBar bar(name, total, "tokens");
  engine.reset_metrics();
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<RequestOutput> outputs = engine.generate(requests, [&](const StepResult& step) {
    for (const CompletionUpdate& update : step.updates) done += static_cast<int64_t>(update.token_ids.size());
    bar.set(done, fmt::format("{} running, {} waiting", step.metrics.num_running, step.metrics.num_waiting));
  });
  measurement.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  measurement.engine = engine.metrics();
  for (const RequestOutput& output : outputs) measurement.add_latencies(output.metrics);
  return measurement;
}

// `run` hands over each output, of as many requests.
static Measurement measure_outputs(
    EngineClient& client, const std::string& name, int64_t num_requests,
    const std::function<void(const std::function<void(const RequestOutput&)>& on_output)>& run) {
  Measurement measurement;
  measurement.name = name;
  ProgressBar bar(name, num_requests, "requests");
  const auto begin = std::chrono::steady_clock::now();
  run([&](const RequestOutput& output) {
    check_engine_lives(client, output);
    const int64_t done = std::ssize(measurement.time_to_first_token);
    for (const CompletionOutput& completion : output.completions)
      LADDER_CHECK(completion.error.empty(), "request {}: {}", done, completion.error);
    measurement.engine.add(output.metrics);
    measurement.add_latencies(output.metrics);
    bar.set(done + 1);
  });
  measurement.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const EngineStats stats = client.stats();
  measurement.engine.peak_running = stats.metrics.peak_running;
  measurement.engine.peak_kv_blocks = stats.metrics.peak_kv_blocks;
  return measurement;
}

Measurement measure(EngineClient& client, const std::vector<Request>& requests, const std::string& name) {
  return measure_outputs(client, name, std::ssize(requests), [&](const auto& on_output) {
    std::vector<RequestStream> streams;
    for (const Request& request : requests) streams.push_back(client.submit(request));
    for (RequestStream& stream : streams) on_output(stream.output());
  });
}

Measurement measure(EngineClient& client, const SessionLoad& load, const std::string& name) {
  int64_t num_turns = 0;
  for (const PlannedSession& session : load.sessions) num_turns += std::ssize(session);
  return measure_outputs(client, name, num_turns,
                         [&](const auto& on_output) { run_sessions(client, load, on_output); });
}

std::string command_of_this_process() {
  std::ifstream stream("/proc/self/cmdline", std::ios::binary);
  std::string command;
  for (std::string argument; std::getline(stream, argument, '\0');) {
    if (!command.empty()) command += ' ';
    const bool plain = !argument.empty() && argument.find_first_not_of(
                                                "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                                "0123456789_-=./,:+%@") == std::string::npos;
    command += plain ? argument : "'" + argument + "'";
  }
  return command;
}

void check_report_file(const std::string& file) {
  if (file.empty()) return;
  std::error_code none;
  const bool is_new = !std::filesystem::exists(file, none);
  LADDER_CHECK(std::ofstream(file, std::ios::app).good(), "--json {}: cannot be written", file);
  if (is_new) std::filesystem::remove(file, none);  // no empty report is left where the benchmark is stopped
}

void write_report(const std::string& file, const std::vector<Measurement>& results,
                  const BenchMachine& machine) {
  if (file.empty()) return;
  Json list = Json::array();
  for (const Measurement& m : results)
    list.push_back({{"name", m.name},
                    {"seconds", m.seconds},
                    {"requests", m.engine.num_requests_finished},
                    {"prompt_tokens", m.engine.num_prompt_tokens},
                    {"output_tokens", m.engine.num_output_tokens},
                    {"cached_tokens", m.engine.num_cached_tokens},
                    {"computed_tokens", m.engine.num_tokens},
                    {"preemptions", m.engine.num_preemptions},
                    {"steps", m.engine.num_steps},
                    {"prefill_steps", m.engine.num_prefill_steps},
                    {"decode_steps", m.engine.num_decode_steps},
                    {"output_tokens_per_second", m.output_tokens_per_second()},
                    {"total_tokens_per_second", m.total_tokens_per_second()},
                    {"time_to_first_token_mean", mean(m.time_to_first_token)},
                    {"time_to_first_token_median", percentile(m.time_to_first_token, 0.5)},
                    {"time_to_first_token_p99", percentile(m.time_to_first_token, 0.99)},
                    {"inter_token_latency_mean", mean(m.inter_token_latency)},
                    {"inter_token_latency_p99", percentile(m.inter_token_latency, 0.99)},
                    {"inter_token_latency_max", m.inter_token_latency_max},
                    {"peak_running", m.engine.peak_running},
                    {"peak_kv_blocks", m.engine.peak_kv_blocks},
                    {"kv_live_share", m.engine.kv_live_share()},
                    {"executor_seconds", m.engine.execute_seconds},
                    {"prefill_executor_seconds", m.engine.prefill_execute_seconds},
                    {"decode_executor_seconds", m.engine.decode_execute_seconds},
                    {"communicate_seconds", m.engine.communicate_seconds},
                    {"stage_wait_seconds", m.engine.stage_wait_seconds},
                    {"step_seconds", m.engine.step_seconds},
                    {"of_streaming_limit", m.of_streaming_limit > 0.0 ? Json(m.of_streaming_limit) : Json()},
                    {"touched_experts", m.touched_experts > 0.0 ? Json(m.touched_experts) : Json()}});
  write_report(file, std::move(list), machine);
}

void write_report(const std::string& file, Json results, const BenchMachine& machine) {
  if (file.empty()) return;
  const std::string commit = commit_of_this_program();
  const bool on_gpu = !machine.device.is_cpu();
  Json report = {{"command", command_of_this_process()},
                 {"commit", commit.empty() ? Json() : Json(commit)},
                 {"cpu", cpu_name()},
                 {"isa", std::string(isa_name(cpu_isa()))},
                 {"threads", machine.threads},
                 {"gpu", on_gpu ? Json(cuda_device_info(machine.device.index).name) : Json()},
                 {"copy_bandwidth", machine.copy_bandwidth > 0.0 ? Json(machine.copy_bandwidth) : Json()},
                 {"results", std::move(results)}};
  std::ofstream stream(file);
  stream << report.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
  stream.flush();
  LADDER_CHECK(stream.good(), "--json {}: cannot be written", file);
}

}  // namespace ladder

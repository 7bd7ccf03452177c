// ladder bench serve-overhead: what the server costs. The same requests by Engine::generate and over HTTP, server,
// engine and client in one process, so that one clock sees both ends:
//
//   engine's thread: on_ready(k-th time) ---- server, loopback, client's thread ----> the k-th chunk is read
//                    |<----------------- added latency -------------------->|
#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "cli/bench/bench.h"
#include "cli/bench/report.h"
#include "cli/bench/serve_plan.h"
#include "cli/bench/serve_report.h"
#include "cli/bench/workload.h"
#include "cli/engine_flags.h"
#include "cli/flag_values.h"
#include "cli/run_requests.h"
#include "cli/terminal.h"
#include "step1_layers/core/error.h"
#include "step6_engine/server/http/io_thread_count.h"
#include "step6_engine/server/openai/openai_routes.h"
#include "step6_engine/server/server.h"
#include "step6_engine/thread_engine_client.h"

namespace ladder {

namespace {

using Clock = std::chrono::steady_clock;

// Passes everything on, and writes down when each request's stream became ready.
class ClockedClient final : public EngineClient {
 public:
  using Times = std::vector<Clock::time_point>;

  explicit ClockedClient(EngineClient& client) : client_(client) {}

  RequestStream submit(const Request& request, std::function<void()> on_ready) override {
    auto times = std::make_shared<Times>();
    times->reserve(static_cast<size_t>(request.sampling.max_tokens.value_or(1)) + 2);
    {
      std::lock_guard lock(mutex_);
      times_[request.request_id] = times;
    }
    return client_.submit(request, [times, on_ready = std::move(on_ready)] {
      times->push_back(Clock::now());
      if (on_ready) on_ready();
    });
  }
  void abort(const RequestId& id) override { client_.abort(id); }
  EngineStats stats() const override { return client_.stats(); }
  void pause() override { client_.pause(); }
  void resume() override { client_.resume(); }
  bool reset_prefix_cache() override { return client_.reset_prefix_cache(); }
  void stop(std::chrono::milliseconds drain) override { client_.stop(drain); }

  // Of all requests since the last call; none of them is under way any more.
  std::map<RequestId, std::shared_ptr<Times>> take() {
    std::lock_guard lock(mutex_);
    return std::exchange(times_, {});
  }

 private:
  EngineClient& client_;
  std::mutex mutex_;
  std::map<RequestId, std::shared_ptr<Times>> times_;
};

struct OverheadFlags {
  EngineFlags engine;
  Workload workload;
  int64_t client_threads = 8, io_threads = 0, repeat = 3;
  std::string json;
};

struct Served {
  ServeSummary summary;
  std::vector<double> added;  // seconds, per chunk
  int64_t unpaired = 0;       // requests with more or fewer chunks than wakes
};

RequestId name_of(size_t i) {
  return fmt::format("overhead-{}", i);
}

Served serve_once(const std::vector<ServeRequest>& messages, const LoadOptions& options,
                  ClockedClient& client) {
  client.take();
  const LoadResult result = run_load(messages, options);
  // OpenAI's endpoint puts words around the id that the client gave.
  std::map<std::string, std::shared_ptr<ClockedClient::Times>> times;
  for (auto& [id, list] : client.take()) {
    const size_t begin = id.find("overhead-");
    if (begin == std::string::npos) continue;
    const size_t end = id.find_first_not_of("0123456789", begin + std::string_view("overhead-").size());
    times[id.substr(begin, end == std::string::npos ? end : end - begin)] = list;
  }
  Served served;
  served.summary = summarise(result, {});
  for (size_t i = 0; i < messages.size(); ++i) {
    const ServeRecord& record = result.records[i];
    LADDER_CHECK(record.error.empty(), "a request failed: {}: {}", record.error, record.detail);
    const auto found = times.find(name_of(i));
    const size_t chunks = record.gaps.size() + 1;
    // The end may be announced by itself, and brings no token.
    if (found == times.end() || found->second->size() < chunks || found->second->size() > chunks + 1) {
      ++served.unpaired;
      continue;
    }
    double arrived = record.first;
    for (size_t k = 0; k < chunks; ++k) {
      if (k > 0) arrived += static_cast<double>(record.gaps[k - 1]);
      const double offered = std::chrono::duration<double>((*found->second)[k] - result.begin).count();
      served.added.push_back(arrived - offered);
    }
  }
  return served;
}

void run_overhead(const OverheadFlags& flags) {
  check_report_file(flags.json);
  const EngineOptions options = flags.engine.options();
  const ModelFolder folder = open_model_folder(options.model);
  const std::vector<Request> requests = make_requests(flags.workload, folder.spec.vocab_size);
  const RunnerConfig config = resolved_runner_config(options, folder.spec);
  std::unique_ptr<Engine> engine = load_engine_with_progress(options, folder);
  engine->generate(make_warm_up(flags.workload, folder.spec.vocab_size, config.device));

  std::vector<double> direct, over_http, busiest;
  for (int64_t i = 0; i < flags.repeat; ++i) {
    engine->reset_prefix_cache();
    direct.push_back(measure(*engine, requests, "Engine::generate").output_tokens_per_second());
  }

  const BatchConfig batch = engine->scheduler().config().batch;
  const auto model = std::make_shared<const ServedModel>(
      make_served_model(options.model, folder, batch.max_model_len, {"model"}));
  ThreadEngineClient inner(std::move(engine));
  ClockedClient client(inner);
  ServerOptions server_options;
  server_options.http.port = 0;
  server_options.http.io_threads =
      flags.io_threads > 0 ? static_cast<int>(flags.io_threads) : default_io_threads();
  Server server(server_options, client, [&](Router& router) { add_openai_routes(router, client, model); });

  MessageOptions message;
  message.address = parse_base_url(server.address());
  message.model = "model";
  std::vector<ServeRequest> messages;
  for (size_t i = 0; i < requests.size(); ++i) {
    message.extra_body = {{"request_id", name_of(i)}};
    messages.push_back(make_message(requests[i], message));
  }
  LoadOptions load;
  load.address = message.address;
  load.num_threads = static_cast<int>(flags.client_threads);
  load.max_concurrency = batch.max_num_seqs;
  std::vector<double> added;
  int64_t unpaired = 0;
  Json runs = Json::array();
  for (int64_t i = 0; i < flags.repeat; ++i) {
    client.reset_prefix_cache();
    const Served served = serve_once(messages, load, client);
    over_http.push_back(served.summary.per_second(served.summary.num_output_tokens));
    busiest.push_back(served.summary.busiest_thread);
    unpaired += served.unpaired;
    added.insert(added.end(), served.added.begin(), served.added.end());
    runs.push_back(summary_json(served.summary));
  }
  server.stop(std::chrono::milliseconds(0));

  const double ratio = percentile(over_http, 0.5) / percentile(direct, 0.5);
  const Spread latency = spread_of(added);
  write_report(flags.json,
               Json::array({{{"name", "serve-overhead"},
                             {"engine_tokens_per_second", direct},
                             {"served_tokens_per_second", over_http},
                             {"ratio", ratio},
                             {"added_latency",
                              {{"mean", latency.mean},
                               {"median", latency.median},
                               {"p99", latency.p99},
                               {"max", latency.max}}},
                             {"unpaired_requests", unpaired},
                             {"served", std::move(runs)}}}),
               {config.device, config.threads, 0.0});
  const auto list = [](const std::vector<double>& rates) {
    std::string text;
    for (const double rate : rates) text += fmt::format("{}{:.0f}", text.empty() ? "" : ", ", rate);
    return text + " tokens/s";
  };
  write_out(format_pairs({
      {"Engine::generate", list(direct)},
      {"over HTTP", list(over_http)},
      {"ratio of the medians", fmt::format("{:.3f}", ratio)},
      {"added latency of a token, median", format_seconds(latency.median)},
      {"added latency of a token, 99 %", format_seconds(latency.p99)},
      {"added latency of a token, longest", format_seconds(latency.max)},
      {"the client's busiest thread", fmt::format("{:.1f} %", 100.0 * percentile(busiest, 1.0))},
      {"requests left out of the latencies", format_count(unpaired)},
  }));
}

}  // namespace

RunCommand add_bench_serve_overhead(CLI::App& app) {
  auto flags = std::make_shared<OverheadFlags>();
  Workload& workload = flags->workload;
  const auto add = [&](const char* name, int64_t& value, int64_t most, const char* help) {
    app.add_option(name, value, help)->check(whole_in_range(1, most))->type_name("N")->capture_default_str();
  };
  constexpr int64_t kMaxLength = 1 << 24;
  add("--num-requests", workload.num_requests, kMaxLength, "requests, all there from the start");
  add("--min-prompt-len", workload.min_prompt_len, kMaxLength, "prompt lengths are uniform from this ...");
  add("--max-prompt-len", workload.max_prompt_len, kMaxLength, "... to this");
  add("--min-output-len", workload.min_output_len, kMaxLength, "output lengths are uniform from this ...");
  add("--max-output-len", workload.max_output_len, kMaxLength, "... to this (end tokens are ignored)");
  app.add_option("--temperature", workload.temperature, "0 is greedy")
      ->check(in_range(0, 100))
      ->type_name("T")
      ->capture_default_str();
  add("--repeat", flags->repeat, 1000, "how often, either way");
  add("--client-threads", flags->client_threads, 256,
      "threads of the client; what a chunk waits for them counts");
  app.add_option("--io-threads", flags->io_threads, "threads of the server's connections; 0: as ladder serve")
      ->check(whole_in_range(0, 256))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--json", flags->json, "write the figures to this file too")->type_name("FILE");
  flags->engine.add(app);
  return [flags] { run_overhead(*flags); };
}

}  // namespace ladder

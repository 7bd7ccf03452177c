// ladder serve: the model behind HTTP.
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <thread>

#include "cli/commands.h"
#include "cli/engine_flags.h"
#include "cli/engine_process.h"
#include "cli/flag_values.h"
#include "cli/run_requests.h"
#include "cli/serve_flags.h"
#include "cli/terminal.h"
#include "cli/tiny_model.h"
#include "cli/trace_flags.h"
#include "step1_layers/core/error.h"
#include "step6_engine/server/metrics/prometheus.h"
#include "step6_engine/server/openai/openai_routes.h"
#include "step6_engine/server/server.h"
#include "step6_engine/server/window/window.h"
#include "step6_engine/thread_engine_client.h"

namespace ladder {

namespace {

struct ServeFlags {
  EngineFlags engine;
  ServerFlags server;
  TraceFlags trace;
};

// SIGTERM and SIGINT, taken by wait() alone: blocked in all threads, so this comes before any thread is started.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  int wait() const {
    int signal = 0;
    while (sigwait(&set_, &signal) != 0) {
    }
    return signal;
  }

 private:
  sigset_t set_;
};

// A connection is a descriptor: as many as the system lets this process have.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void log_line(std::string_view line) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
}

std::string limits_text(const ServeFlags& flags, const EngineOptions& options, const BatchConfig& batch) {
  const int64_t num_tokens = batch.num_kv_blocks * batch.block_size;
  const int64_t blocks_each = (batch.max_model_len + batch.block_size - 1) / batch.block_size;
  const int64_t num_longest = std::min(batch.num_kv_blocks / blocks_each, batch.max_num_seqs);
  const auto limit = [](int64_t value, const char* unit) {
    return value == 0 ? std::string("no limit") : fmt::format("{} {}", format_count(value), unit);
  };
  const HttpServerOptions http = flags.server.http_options();
  return format_pairs({
      {"model", fmt::format("{} on {}", flags.server.model_names(options.model)[0],
                            options.runner.device.is_cpu() ? "the CPU" : "a GPU")},
      {"KV cache", fmt::format("{} tokens, {} blocks of {}", format_count(num_tokens),
                               format_count(batch.num_kv_blocks), batch.block_size)},
      {"a request", fmt::format("at most {} tokens, prompt and output (--max-model-len)",
                                format_count(batch.max_model_len))},
      {"at the same time", fmt::format("{} requests of that length; {} of any (--max-num-seqs)",
                                       format_count(num_longest), format_count(batch.max_num_seqs))},
      {"a step", fmt::format("at most {} tokens (--max-num-batched-tokens)",
                             format_count(batch.max_num_batched_tokens))},
      {"waiting", fmt::format("{} (--max-num-queued-reqs), {} (--max-num-queued-tokens)",
                              limit(flags.server.max_num_queued_reqs, "requests"),
                              limit(flags.server.max_num_queued_tokens, "tokens"))},
      {"connections", fmt::format("{}, bodies up to {}", format_count(http.max_connections),
                                  format_bytes(http.request.max_body_bytes))},
      {"keys", http.api_keys.empty() ? std::string("none: everybody who reaches the port may ask (--api-key)")
                                     : std::to_string(http.api_keys.size())},
  });
}

// The engine in a thread of this process, or in a process of its own.
std::pair<std::unique_ptr<EngineClient>, BatchConfig> start_engine(const ServeFlags& flags,
                                                                   const EngineOptions& options,
                                                                   const ModelFolder& folder) {
  EngineClientOptions client_options;
  client_options.max_num_queued_reqs = flags.server.max_num_queued_reqs;
  client_options.max_num_queued_tokens = flags.server.max_num_queued_tokens;
  if (flags.server.engine_process) {
    auto client =
        start_engine_process_with_progress(flags.engine, flags.trace, folder, std::move(client_options));
    const BatchConfig batch = client->config().batch;
    return {std::move(client), batch};
  }
  const std::shared_ptr<TraceWriter> trace = flags.trace.open();
  std::unique_ptr<Engine> engine = load_engine_with_progress(options, folder);
  record_if_wanted(*engine, trace);
  const BatchConfig batch = engine->scheduler().config().batch;
  return {std::make_unique<ThreadEngineClient>(std::move(engine), std::move(client_options)), batch};
}

void run_serve(const ServeFlags& flags) {
  const StopSignals signals;
  raise_descriptor_limit();
  const EngineOptions options = flags.engine.options();
  ServerOptions server_options;
  server_options.http = flags.server.http_options();
  check_metrics_prefix(flags.server.metrics_prefix);  // before a model is loaded
  ToolCallParserMaker tool_call_parser = flags.server.tool_call_parser();
  server_options.stuck_after = flags.server.stuck_after();
  server_options.http.error_log = log_line;
  if (flags.server.access_log) server_options.http.access_log = log_line;
  server_options.on_engine_death = [](const std::string& error) {
    log_line("ladder: the engine has died, /health says so: " + error);
  };

  const ModelFolder folder = open_model_folder(options.model, flags.server.generation_config);
  const auto started = start_engine(flags, options, folder);
  EngineClient& client = *started.first;
  const BatchConfig& batch = started.second;
  ServedModel served =
      make_served_model(options.model, folder, batch.max_model_len, flags.server.model_names(options.model));
  served.tool_call_parser = std::move(tool_call_parser);
  const auto model = std::make_shared<const ServedModel>(std::move(served));
  const PrometheusOptions metrics = {.prefix = flags.server.metrics_prefix,
                                     .model_name = flags.server.model_names(options.model)[0],
                                     .batch = batch,
                                     .enable_prefix_caching = options.enable_prefix_caching};
  Server server(server_options, client, [&](Router& router) {
    add_window_routes(router, client);
    add_openai_routes(router, client, model, {.tokenizer_info = flags.server.tokenizer_info});
    add_metrics_route(router, client, metrics);
  });

  write_out(limits_text(flags, options, batch));
  if (!flags.server.is_loopback() && server_options.http.api_keys.empty())
    log_line(fmt::format(
        "ladder: warning: --host {} may be reached from other machines, and there is no --api-key",
        server_options.http.host));
  write_out(fmt::format("listening on {} (ctrl-C ends)\n", server.address()));

  signals.wait();
  log_line(
      fmt::format("ladder: stopping: {} s for what is under way (--drain-timeout); once more ends at once",
                  flags.server.drain_timeout));
  std::thread([&signals] { _exit(128 + signals.wait()); }).detach();
  server.stop(flags.server.drain_time());
}

}  // namespace

RunCommand add_serve_command(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  flags->server.add(app);
  flags->trace.add(app);
  flags->engine.add(app, {}, tiny_model_folder());
  return [flags] { run_serve(*flags); };
}

}  // namespace ladder

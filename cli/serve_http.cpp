#include "cli/serve_http.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "cli/tiny_model.h"
#include "step6_engine/server/metrics/prometheus.h"
#include "step6_engine/server/openai/openai_routes.h"
#include "step6_engine/server/window/window.h"

namespace ladder {

void ServeFlags::add(CLI::App& app) {
  server.add(app);
  trace.add(app);
  engine.add(app, {}, tiny_model_folder());
  replicas.add(app);
  replicas.add_for_server(app);
}

StopSignals::StopSignals() {
  sigemptyset(&set_);
  sigaddset(&set_, SIGTERM);
  sigaddset(&set_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
}

int StopSignals::wait() const {
  int signal = 0;
  while (sigwait(&set_, &signal) != 0) {
  }
  return signal;
}

int StopSignals::wait_for(std::chrono::milliseconds time) const {
  const timespec left{time.count() / 1000, time.count() % 1000 * 1'000'000};
  return std::max(sigtimedwait(&set_, nullptr, &left), 0);
}

void StopSignals::end_at_the_next() const {
  std::thread([set = *this] { _exit(128 + set.wait()); }).detach();
}

void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void log_line(std::string_view line) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
}

std::jthread end_at_a_signal(const StopSignals& signals) {
  return std::jthread([&signals](const std::stop_token& over) {
    while (!over.stop_requested())
      if (const int signal = signals.wait_for(std::chrono::milliseconds(50))) std::_Exit(128 + signal);
  });
}

void begin_to_stop(double drain_timeout, const StopSignals& signals) {
  log_line(
      fmt::format("ladder: stopping: {} s for what is under way (--drain-timeout); once more ends at once",
                  drain_timeout));
  signals.end_at_the_next();
}

ServerOptions server_options(const ServerFlags& flags) {
  ServerOptions options;
  options.http = flags.http_options();
  check_metrics_prefix(flags.metrics_prefix);
  flags.tool_call_parser();
  options.stuck_after = flags.stuck_after();
  options.http.error_log = log_line;
  if (flags.access_log) options.http.access_log = log_line;
  return options;
}

std::unique_ptr<Server> make_server(const ServeFlags& flags, ServerOptions options, const ModelFolder& folder,
                                    const SchedulerConfig& config, EngineClient& client) {
  const std::vector<std::string> names = flags.server.model_names(flags.engine.model);
  ServedModel served = make_served_model(flags.engine.model, folder, config.batch.max_model_len, names);
  served.tool_call_parser = flags.server.tool_call_parser();
  const auto model = std::make_shared<const ServedModel>(std::move(served));
  const PrometheusOptions metrics = {.prefix = flags.server.metrics_prefix,
                                     .model_name = names[0],
                                     .first_engine = flags.replicas.range().first,
                                     .batch = config.batch,
                                     .enable_prefix_caching = config.enable_prefix_caching};
  return std::make_unique<Server>(std::move(options), client, [&](Router& router) {
    add_window_routes(router, client);
    add_openai_routes(router, client, model, {.tokenizer_info = flags.server.tokenizer_info});
    add_metrics_route(router, client, metrics);
  });
}

}  // namespace ladder

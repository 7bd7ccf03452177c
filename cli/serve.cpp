// ladder serve: the model behind HTTP.
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <thread>

#include "cli/commands.h"
#include "cli/flag_values.h"
#include "cli/make_client.h"
#include "cli/serve_disaggregated.h"
#include "cli/serve_headless.h"
#include "cli/serve_http.h"
#include "cli/terminal.h"
#include "step1_layers/core/error.h"
#include "step6_engine/process/parent_socket.h"
#include "step6_engine/remote/api_servers.h"
#include "step6_engine/server/http/listening_socket.h"
#include "step8_advanced/disaggregation/router/server/local_servers.h"

namespace ladder {

namespace {

std::string limits_text(const ServeFlags& flags, const EngineOptions& options, const BatchConfig& batch) {
  const int64_t num_tokens = batch.num_kv_blocks * batch.block_size;
  const int64_t blocks_each = (batch.max_model_len + batch.block_size - 1) / batch.block_size;
  const int64_t num_longest = std::min(batch.num_kv_blocks / blocks_each, batch.max_num_seqs);
  const auto limit = [](int64_t value, const char* unit) {
    return value == 0 ? std::string("no limit") : fmt::format("{} {}", format_count(value), unit);
  };
  const HttpServerOptions http = flags.server.http_options();
  std::vector<std::pair<std::string, std::string>> lines = {
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
      {"connections",
       fmt::format("{}{}, bodies up to {}", format_count(http.max_connections),
                   flags.server.api_server_count == 1
                       ? std::string()
                       : fmt::format(" for each of {} API servers", flags.server.api_server_count),
                   format_bytes(http.request.max_body_bytes))},
      {"keys", http.api_keys.empty() ? std::string("none: everybody who reaches the port may ask (--api-key)")
                                     : std::to_string(http.api_keys.size())},
  };
  const ReplicaRange replicas = flags.replicas.range();
  const int num_behind = replicas.num_local + replicas.num_remote;
  std::string range = fmt::format("{} to {}", replicas.first, replicas.first + num_behind - 1), others;
  if (num_behind == 1) range = std::to_string(replicas.first);
  if (replicas.num_remote > 0) others = fmt::format(", on other machines from {} on", replicas.num_local);
  if (replicas.num_replicas > 1)
    lines.insert(lines.begin() + 1,
                 {num_behind == 1 ? "replica" : "replicas",
                  fmt::format("{} of {}{}; {} has what follows{}", range, replicas.num_replicas, others,
                              num_behind == 1 ? "it" : "each", shared_experts_text(options.runner))});
  return format_pairs(lines);
}

void say_engine_death(const std::string& error) {
  log_line("ladder: the engine has died, /health says so: " + error);
}

void announce(const ServeFlags& flags, const EngineOptions& options, const BatchConfig& batch,
              const HttpServerOptions& http, const std::string& address) {
  write_out(limits_text(flags, options, batch));
  if (!flags.server.is_loopback() && http.api_keys.empty())
    log_line(fmt::format(
        "ladder: warning: --host {} may be reached from other machines, and there is no --api-key",
        http.host));
  write_out(fmt::format("listening on {} (ctrl-C ends)\n", address));
}

std::vector<std::string> api_server_arguments(const ServeFlags& flags) {
  std::vector<std::string> words = {"api-server"};
  for (auto& part : {flags.server.arguments(), flags.engine.arguments(), flags.replicas.arguments()})
    words.insert(words.end(), part.begin(), part.end());
  return words;
}

// `listening_socket`: of `ladder serve --disaggregate`, whose router says where all of it listens; -1: none.
void run_serve(const ServeFlags& flags, int listening_socket = -1) {
  const StopSignals signals;
  raise_descriptor_limit();
  const EngineOptions options = flags.engine.options(&flags.replicas);
  ServerOptions http_side = server_options(flags.server);  // before a model is loaded, as the port is
  const bool is_behind_router = listening_socket >= 0;
  FileDescriptor own_socket;
  if (!is_behind_router) own_socket = open_bound_socket(http_side.http);
  http_side.http.listening_socket = is_behind_router ? listening_socket : own_socket.number();
  const HttpServerOptions http = http_side.http;

  const ModelFolder folder = open_model_folder(options.model, flags.server.generation_config);
  TurnListeners turns;
  EngineClientOptions client_options = flags.server.client_options();
  client_options.on_turn = [&turns] { turns.announce(); };
  std::optional<std::jthread> waiting;
  if (flags.replicas.range().num_remote > 0) waiting = end_at_a_signal(signals);
  const MadeClient made = make_client({.engine = flags.engine,
                                       .replicas = flags.replicas,
                                       .trace = flags.trace,
                                       .engine_process = flags.server.engine_process,
                                       .stuck_after = flags.server.stuck_after()},
                                      options, folder, std::move(client_options));
  waiting.reset();
  EngineClient& client = *made.client;
  const SchedulerConfig& config = made.config;

  if (flags.server.api_server_count == 1) {
    http_side.on_engine_death = say_engine_death;
    // `ladder serve --disaggregate` starts a server again that has ended, and no one that answers 503 for ever.
    if (is_behind_router)
      http_side.on_engine_death = [](const std::string& error) {
        say_engine_death(error);
        ::kill(::getpid(), SIGTERM);
      };
    const std::unique_ptr<Server> server = make_server(flags, std::move(http_side), folder, config, client);
    own_socket.close();  // the server has its own copy, which it closes when it is to stop
    if (!is_behind_router) announce(flags, options, config.batch, http, server->address());
    signals.wait();
    if (!is_behind_router) begin_to_stop(flags.server.drain_timeout, signals);
    server->stop(flags.server.drain_time());
    return;
  }
  begin_to_listen(own_socket.number());
  const std::string address = http_address(http, port_of(own_socket.number()));
  const EngineWatch watch(client, flags.server.stuck_after(), say_engine_death);
  ApiServers servers(client, &turns, config,
                     {.count = flags.server.api_server_count,
                      .arguments = api_server_arguments(flags),
                      .listening_socket = std::move(own_socket),
                      .log = [](std::string_view line) { log_line(fmt::format("ladder: {}", line)); }});
  announce(flags, options, config.batch, http, address);
  signals.wait();
  begin_to_stop(flags.server.drain_timeout, signals);
  servers.stop(flags.server.drain_time());
}

}  // namespace

RunCommand add_serve_command(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  flags->add(app);
  return [flags, &app] {
    const bool ranks_by_kind = flags->server.prefill_ranks || flags->server.decode_ranks;
    LADDER_CHECK(
        !ranks_by_kind || app.count("--enable-expert-parallel") == 0,
        "--prefill-tensor-parallel-size and --decode-tensor-parallel-size: with --enable-expert-parallel "
        "all servers share out their experts over as many ranks, expected --tensor-parallel-size");
    if (!flags->server.disaggregate.empty()) return run_disaggregated(*flags);
    LADDER_CHECK(!flags->server.min_remote_tokens, "--min-remote-tokens: expected with --disaggregate");
    LADDER_CHECK(!ranks_by_kind,
                 "--prefill-tensor-parallel-size and --decode-tensor-parallel-size: expected with "
                 "--disaggregate");
    LADDER_CHECK(!flags->server.prefill_first, "--prefill-first: expected with --disaggregate");
    flags->replicas.headless() ? run_headless(*flags) : run_serve(*flags);
  };
}

// The descriptor only keeps it from outliving its parent.
RunCommand add_disaggregated_server_command(CLI::App& app) {
  struct Flags {
    ServeFlags serve;
    int descriptor = -1;
  };
  auto flags = std::make_shared<Flags>();
  flags->serve.add(app);
  app.add_option("--fd", flags->descriptor, "the connection")->check(whole_in_range(3, 1 << 20))->required();
  return [flags] {
    const FileDescriptor parent = take_parent_socket(flags->descriptor, "`ladder serve --disaggregate`");
    run_serve(flags->serve, LocalServers::kListeningSocket);
  };
}

}  // namespace ladder

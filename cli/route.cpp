// ladder route: prefill and decode servers behind one address.
#include <memory>
#include <optional>
#include <thread>

#include "cli/commands.h"
#include "cli/flag_values.h"
#include "cli/serve_http.h"
#include "cli/terminal.h"
#include "step7_parallel/hosts/tcp_socket.h"
#include "step8_advanced/disaggregation/router/server/route_server.h"

namespace ladder {

namespace {

struct RouteFlags {
  RouteServerOptions server;
  double wait = 0, silence = 300, check_interval = 1, check_timeout = 2, drain_timeout = 30;  // seconds

  RouteServerOptions options() const {
    RouteServerOptions options = server;
    options.http.error_log = log_line;
    options.limits.silence_timeout = in_milliseconds(silence);
    options.check_interval = in_milliseconds(check_interval);
    options.check_timeout = in_milliseconds(check_timeout);
    return options;
  }
  static std::chrono::milliseconds in_milliseconds(double seconds) {
    return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  }
};

void run_route(const RouteFlags& flags) {
  const StopSignals signals;
  raise_descriptor_limit();
  const RouteServerOptions options = flags.options();
  {
    const std::jthread waiting = end_at_a_signal(signals);
    wait_for_servers(options, RouteFlags::in_milliseconds(flags.wait));
  }
  RouteServer server(options);
  write_out(format_pairs(
      {{"prefill", fmt::format("{}", fmt::join(options.prefill_urls, ", "))},
       {"decode", fmt::format("{}", fmt::join(options.decode_urls, ", "))},
       {"a prompt",
        fmt::format("of which {} tokens or more are missing at its decode server is computed by a "
                    "prefill server (--min-remote-tokens)",
                    options.policy.min_remote_tokens)}}));
  if (!is_loopback(options.http.host) && options.http.api_keys.empty())
    log_line(fmt::format(
        "ladder: warning: --host {} may be reached from other machines, and there is no --api-key",
        options.http.host));
  write_out(fmt::format("listening on {} (ctrl-C ends)\n", server.address()));
  signals.wait();
  begin_to_stop(flags.drain_timeout, signals);
  server.stop(RouteFlags::in_milliseconds(flags.drain_timeout));
}

}  // namespace

RunCommand add_route_command(CLI::App& app) {
  auto flags = std::make_shared<RouteFlags>();
  RouteServerOptions& server = flags->server;
  const auto urls = [&](const char* name, std::vector<std::string>& values, const char* help) {
    app.add_option(name, values, help)->required()->type_name("URL");
  };
  const auto seconds = [&](const char* name, double& value, double low, const char* help) {
    app.add_option(name, value, help)->check(in_range(low, 1e6))->type_name("SECONDS")->capture_default_str();
  };
  urls("--prefill", server.prefill_urls,
       "servers that compute prompts, e.g. http://127.0.0.1:8100; one or more");
  urls("--decode", server.decode_urls, "servers that go on with them; one or more");
  app.add_option("--host", server.http.host, "address to listen on; 0.0.0.0: every network of this machine")
      ->type_name("HOST")
      ->capture_default_str();
  app.add_option("--port", server.http.port, "port to listen on; 0: any that is free")
      ->check(whole_in_range(0, 65535))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--api-key", server.http.api_keys,
                 "what clients must send as \"Authorization: Bearer KEY\", and the servers want; may repeat")
      ->type_name("KEY")
      ->allow_extra_args(false)
      ->envname("LADDER_API_KEY");
  app.add_option(
         "--min-remote-tokens", server.policy.min_remote_tokens,
         "prompts of which the decode server lacks fewer tokens it computes itself (of a text, four bytes "
         "count as one)")
      ->check(whole_in_range(0, int64_t{1} << 40))
      ->type_name("N")
      ->capture_default_str();
  app.add_flag(
      "--prefill-first", server.limits.prefill_first,
      "ask the decode server when the prefill server has answered; else both at once where the prefill server's "
      "engine is known by an earlier answer, so that keys go over while the prompt is computed");
  app.add_option("--cache-tokens", server.policy.cache_tokens,
                 "tokens that the KV cache of one server is thought to hold, to guess which prompts it knows")
      ->check(whole_in_range(1, int64_t{1} << 40))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--max-in-flight", server.limits.max_in_flight,
                 "requests under way; more are answered 503 with Retry-After")
      ->check(whole_in_range(1, 1'000'000))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--retries", server.limits.retries,
                 "other servers of a kind that a request is sent to when one fails before the first token")
      ->check(whole_in_range(0, 1000))
      ->type_name("N")
      ->capture_default_str();
  seconds("--wait", flags->wait, 0,
          "for all servers to answer GET /health; one that does not by then ends the router");
  seconds("--timeout", flags->silence, 0.01,
          "without a byte from a server that was asked, until it has failed");
  seconds("--check-interval", flags->check_interval, 0.01, "between a server's health checks");
  seconds("--check-timeout", flags->check_timeout, 0.01,
          "for the answer to one; a server that misses three in a row is asked no more");
  seconds("--drain-timeout", flags->drain_timeout, 0,
          "for what is under way once the router is asked to stop (SIGTERM, ctrl-C); then it is cut");
  return [flags] { run_route(*flags); };
}

}  // namespace ladder

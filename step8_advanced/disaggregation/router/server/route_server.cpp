#include "step8_advanced/disaggregation/router/server/route_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "step1_layers/core/error.h"
#include "step6_engine/server/http/errors.h"
#include "step8_advanced/disaggregation/router/server/routed_request.h"

namespace ladder {

namespace {

std::string key_header(const HttpServerOptions& http) {
  return http.api_keys.empty() ? std::string()
                               : fmt::format("Authorization: Bearer {}\r\n", http.api_keys[0]);
}

}  // namespace

void wait_for_servers(const RouteServerOptions& options, std::chrono::milliseconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  const auto wait_for = [&](const char* role, const std::string& url) {
    const HttpAddress address = parse_base_url(url);
    while (true) {
      std::string why;
      try {
        const HttpReply reply = http_get(address, "/health", key_header(options.http), options.check_timeout);
        if (reply.status == 200) return;
        why = fmt::format("expected a server that answers GET /health with 200, got {}", reply.status);
      } catch (const Error& error) {
        why = error.what();
      }
      LADDER_CHECK(std::chrono::steady_clock::now() < until, "--{} {}: {}", role, url, why);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  };
  for (const std::string& url : options.prefill_urls) wait_for("prefill", url);
  for (const std::string& url : options.decode_urls) wait_for("decode", url);
}

RouteServer::RouteServer(RouteServerOptions options) {
  LADDER_CHECK(!options.decode_urls.empty(), "--decode: expected one server or more");
  options.policy.num_prefill = static_cast<int>(options.prefill_urls.size());
  options.policy.num_decode = static_cast<int>(options.decode_urls.size());
  core_.policy = std::make_unique<RoutePolicy>(options.policy);
  core_.limits = options.limits;
  core_.log = [log = options.http.error_log](std::string_view line) {
    if (log) log(line);
  };
  add_backends(options);
  http_ = std::make_unique<HttpServer>(std::move(options.http), routes());
  for (const auto* servers : {&core_.prefills, &core_.decodes})
    for (const auto& server : *servers) server->start();
  thread_ = std::thread([this] { run(); });
}

// One request's trouble (no memory left, say) does not end the others'.
void RouteServer::run() {
  while (true) {
    try {
      core_.context.run();
      return;
    } catch (const std::exception& error) {
      core_.log(error.what());
    }
  }
}

void RouteServer::add_backends(const RouteServerOptions& options) {
  const auto add = [&](const char* role, const std::vector<std::string>& urls,
                       std::vector<std::unique_ptr<Backend>>& servers, void (RoutePolicy::*forget)(int)) {
    for (const std::string& url : urls) {
      const int index = static_cast<int>(servers.size());
      const HttpAddress address = parse_base_url(url);
      LADDER_CHECK(std::ranges::none_of(servers, [&](const auto& one) { return one->address() == address; }),
                   "--{} {}: expected each server once", role, url);
      servers.push_back(std::make_unique<Backend>(
          core_.context,
          BackendOptions{.role = role,
                         .url = url,
                         .check_headers = key_header(options.http),
                         .check_interval = options.check_interval,
                         .check_timeout = options.check_timeout,
                         .log = core_.log,
                         .on_back = [this, index, forget] { (*core_.policy.*forget)(index); }}));
    }
  };
  add("prefill", options.prefill_urls, core_.prefills, &RoutePolicy::forget_prefill);
  add("decode", options.decode_urls, core_.decodes, &RoutePolicy::forget_decode);
}

RouteServer::~RouteServer() {
  stop(std::chrono::milliseconds(0));
}

void RouteServer::stop(std::chrono::milliseconds drain) {
  if (!thread_.joinable()) return;
  core_.draining = true;
  http_->stop_accepting();
  http_->wait_until_idle(drain);
  http_->stop();  // every answer that is left ends, and with it what is asked of servers
  boost::asio::post(core_.context, [this] {
    for (const auto* servers : {&core_.prefills, &core_.decodes})
      for (const auto& server : *servers) server->stop();
  });
  thread_.join();
}

Router RouteServer::routes() {
  Router router;
  const auto pass = [this](bool generates) {
    return [this, generates](std::shared_ptr<HttpExchange> exchange) { take(exchange, generates); };
  };
  // A body may be large.
  for (const char* path : {"/v1/completions", "/v1/chat/completions"})
    router.add({"POST", path, Access::with_key, RunsOn::worker, pass(true)});
  for (const char* path : {"/tokenize", "/detokenize"})
    router.add({"POST", path, Access::with_key, RunsOn::worker, pass(false)});
  for (const char* path : {"/v1/models", "/v1/models/*", "/version", "/tokenizer_info"})
    router.add({"GET", path, Access::with_key, RunsOn::connection, pass(false)});

  // What they tell is the router's thread's.
  const auto from_thread = [this](std::function<HttpResponse()> make) {
    return [this, make](std::shared_ptr<HttpExchange> exchange) {
      boost::asio::post(core_.context, [exchange, make] { exchange->respond(make()); });
    };
  };
  router.add(
      {"GET", "/health", Access::anyone, RunsOn::connection, from_thread([this] { return health(); })});
  router.add({"GET", "/metrics", Access::with_key, RunsOn::connection, from_thread([this] {
                return HttpResponse{.body = router_metrics_text(core_.metrics, core_.prefills, core_.decodes),
                                    .content_type = "text/plain; version=0.0.4; charset=utf-8"};
              })});
  return router;
}

void RouteServer::take(const std::shared_ptr<HttpExchange>& exchange, bool generates) {
  const bool full = ++core_.num_in_flight > core_.limits.max_in_flight;
  if (!full && !core_.draining) return exchange->hold(RoutedRequest::start(core_, *exchange, generates));
  --core_.num_in_flight;
  if (full) boost::asio::post(core_.context, [this] { ++core_.metrics.outcomes["shed"]; });
  HttpResponse later = error_response(
      503, full ? "too many requests are under way: ask again later" : "the router is stopping");
  later.headers.emplace_back("Retry-After", "1");
  exchange->respond(std::move(later));
}

HttpResponse RouteServer::health() const {
  const auto count = [](const std::vector<std::unique_ptr<Backend>>& servers) {
    return std::ranges::count_if(servers, [](const auto& server) { return server->takes_requests(); });
  };
  const auto num_decodes = count(core_.decodes);
  if (num_decodes == 0 || core_.draining)
    return error_response(503, core_.draining ? "the router is stopping" : "no decode server answers");
  return {.body =
              fmt::format(R"({{"prefill_servers":{},"live_prefill_servers":{},"decode_servers":{},)"
                          R"("live_decode_servers":{}}})",
                          core_.prefills.size(), count(core_.prefills), core_.decodes.size(), num_decodes)};
}

}  // namespace ladder

#include "step6_engine/server/server.h"

#include "step6_engine/server/http/errors.h"

namespace ladder {

namespace {

// For the last bytes of answers, once the engine has ended all requests.
constexpr std::chrono::milliseconds kFlush(2'000);

}  // namespace

Server::Server(ServerOptions options, EngineClient& client, const std::function<void(Router&)>& add_routes)
    : client_(client),
      watch_(client, options.stuck_after, std::move(options.on_engine_death)),
      http_(std::move(options.http), routes(add_routes)) {}

Server::~Server() {
  http_.stop();
}

Router Server::routes(const std::function<void(Router&)>& add_routes) {
  const HttpHandler health = [this](std::shared_ptr<HttpExchange> exchange) {
    const EngineHealth health = watch_.health();
    if (health != EngineHealth::ok)
      return exchange->respond(error_response(503, fmt::format("the engine is {}", health_name(health))));
    if (watch_.num_replicas() == 1) return exchange->respond({});
    exchange->respond({.body = fmt::format("{{\"replicas\":{},\"live_replicas\":{}}}", watch_.num_replicas(),
                                           watch_.num_live_replicas())});
  };
  const HttpHandler version = [](std::shared_ptr<HttpExchange> exchange) {
    exchange->respond({.body = fmt::format("{{\"version\":\"{}\"}}", kLadderVersion)});
  };
  Router router;
  // A probe has no key, and an answer to it tells nothing but the state.
  router.add({"GET", "/health", Access::anyone, RunsOn::connection, health});
  router.add({"GET", "/ping", Access::anyone, RunsOn::connection, health});
  router.add({"POST", "/ping", Access::anyone, RunsOn::connection, health});
  router.add({"GET", "/version", Access::with_key, RunsOn::connection, version});
  if (add_routes) add_routes(router);
  return router;
}

void Server::stop(std::chrono::milliseconds drain) {
  watch_.set_draining();
  http_.stop_accepting();
  client_.stop(drain);
  http_.wait_until_idle(kFlush);
  http_.stop();
}

}  // namespace ladder

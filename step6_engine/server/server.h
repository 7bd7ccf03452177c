#pragma once
// The server as a whole: an engine's client behind HTTP.
//
//   HttpServer ---- Router: /health /ping /version        here
//                           what `add_routes` adds         OpenAI's endpoints, metrics, the window, ...
//
// It includes nothing of cli/: `ladder serve` (cli/serve.cpp) reads flags into ServerOptions.
#include <chrono>
#include <functional>
#include <string>

#include "step6_engine/engine_client.h"
#include "step6_engine/server/health/engine_watch.h"
#include "step6_engine/server/http/http_server.h"
#include "step6_engine/server/http/router.h"

namespace ladder {

inline constexpr std::string_view kLadderVersion = "0.6.0";

struct ServerOptions {
  HttpServerOptions http = {};
  // While requests run a step ends at least that often; else /health says 503.
  std::chrono::milliseconds stuck_after{60'000};
  // Called once, from a thread of the server.
  std::function<void(const std::string& error)> on_engine_death = {};
};

class Server {
 public:
  // Listens when it returns. The client must outlive the server; so must what `add_routes` put into handlers.
  // Error: as HttpServer.
  Server(ServerOptions options, EngineClient& client, const std::function<void(Router&)>& add_routes = {});
  ~Server();  // cuts what is under way

  uint16_t port() const { return http_.port(); }
  std::string address() const { return http_.address(); }
  EngineHealth health() const { return watch_.health(); }
  HttpServer& http() { return http_; }

  // Takes no more connections and requests, lets the engine go on for at most `drain` with those that it has, aborts
  // the rest, and returns when every answer has been sent or its client has had time to read it. The engine is
  // stopped then.
  void stop(std::chrono::milliseconds drain);

 private:
  Router routes(const std::function<void(Router&)>& add_routes);

  EngineClient& client_;
  EngineWatch watch_;
  HttpServer http_;
};

}  // namespace ladder

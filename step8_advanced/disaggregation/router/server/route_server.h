#pragma once
// The router as a whole: HTTP in front, prefill and decode servers behind.
//
//   clients ==> HttpServer: connections' threads ---- RoutedRequest ----> the router's thread: policy, calls, health checks
//                 POST /v1/completions, /v1/chat/completions    split      ==> prefill servers
//                 GET /v1/models, POST /tokenize, ...           passed on  ==> decode servers
//                 GET /health, /metrics                         its own
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "step6_engine/server/http/http_server.h"
#include "step8_advanced/disaggregation/router/server/router_core.h"

namespace ladder {

struct RouteServerOptions {
  HttpServerOptions http;  // its keys are the servers' too: what a client sends is passed on
  std::vector<std::string> prefill_urls, decode_urls;
  RoutePolicyOptions policy;  // but for the numbers of servers
  RouterLimits limits;
  std::chrono::milliseconds check_interval{1'000}, check_timeout{2'000};
};

// Returns when each of them answers GET /health with 200. Error, naming the first that has not within the time: no server
// listens there, or it is none of this kind.
void wait_for_servers(const RouteServerOptions& options, std::chrono::milliseconds time);

class RouteServer {
 public:
  // Listens when it returns. Error: no decode server, a URL is none, and as HttpServer.
  explicit RouteServer(RouteServerOptions options);
  ~RouteServer();  // cuts what is under way
  RouteServer(const RouteServer&) = delete;

  uint16_t port() const { return http_->port(); }
  std::string address() const { return http_->address(); }

  // Takes no more requests, waits at most `drain` for those under way, and cuts the rest.
  void stop(std::chrono::milliseconds drain);

 private:
  void run();  // the router's thread
  void add_backends(const RouteServerOptions& options);
  Router routes();
  void take(const std::shared_ptr<HttpExchange>& exchange, bool generates);
  HttpResponse health() const;

  RouterCore core_;
  std::thread thread_;
  std::unique_ptr<HttpServer> http_;  // last: it ends first
};

}  // namespace ladder

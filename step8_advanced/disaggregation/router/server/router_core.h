#pragma once
// What all requests of a router share. Used on the router's thread, but for what is atomic.
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "step8_advanced/disaggregation/router/route_policy.h"
#include "step8_advanced/disaggregation/router/server/backend.h"
#include "step8_advanced/disaggregation/router/server/router_metrics.h"

namespace ladder {

struct RouterLimits {
  // Requests under way; more are answered 503. Each holds its body.
  int64_t max_in_flight = 1024;
  // Servers that a request is sent to after the first one, of each kind, when it fails there.
  int retries = 2;
  std::chrono::milliseconds silence_timeout{300'000};  // without a byte from a server that was asked
  // A decode server is asked when the prefill server has answered; else as soon as it could read what is computed there.
  bool prefill_first = false;
};

struct RouterCore {
  RouterLimits limits;
  std::function<void(std::string_view line)> log;
  boost::asio::io_context context{1};
  std::vector<std::unique_ptr<Backend>> prefills, decodes;
  std::unique_ptr<RoutePolicy> policy;
  RouterMetrics metrics;
  std::atomic<int64_t> num_in_flight = 0;
  std::atomic<bool> draining = false;
};

}  // namespace ladder

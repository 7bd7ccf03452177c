#pragma once
// What all connections of a server share.
#include <atomic>
#include <cstdint>
#include <string>

#include "step6_engine/server/http/api_keys.h"
#include "step6_engine/server/http/gate.h"
#include "step6_engine/server/http/http_server.h"
#include "step6_engine/server/http/worker_pool.h"

namespace ladder {

struct ServerCore {
  ServerCore(HttpServerOptions given, Router routes)
      : options(std::move(given)),
        router(std::move(routes)),
        keys(options.api_keys),
        cors(options.cors),
        gate(router, keys, cors, options.root_path),
        workers(options.worker_threads, options.max_queued_work) {}

  const HttpServerOptions options;
  const Router router;
  const ApiKeys keys;
  const Cors cors;
  const Gate gate;
  WorkerPool workers;
  std::atomic<bool> draining = false;  // each connection closes after its next answer
  std::atomic<int64_t> num_connections = 0;
  std::atomic<int64_t> num_requests = 0;  // being answered

  void log_error(const std::string& line) const {
    if (options.error_log) options.error_log(line);
  }
};

}  // namespace ladder

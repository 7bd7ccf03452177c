#pragma once
// An HTTP/1.1 server: connections on a few threads, each connection on one of them for all of its life, so that it
// needs no lock; a pool of workers for what takes long. What it answers is the router's.
//
//   clients ==> listener --> [ I/O thread: its connections ]  <---- wakes of many streams, as one
//                            [ I/O thread: its connections ]  ----> workers (routes that say so)
//
// What clients cannot do, whatever they send: use more memory than the limits say, hold a connection longer than the
// time-outs without being served, or have a body read without a key where one is needed.
//
// One request at a time: bytes of a second one that come before the first was answered are not kept, and the
// connection closes after that answer (a client may pipeline, and must then ask again on another connection: RFC 9112,
// section 9.3.2). A client that closes its side while its answer is being made has gone away, and the answer is
// destroyed.
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "step6_engine/server/http/cors.h"
#include "step6_engine/server/http/request_reader.h"
#include "step6_engine/server/http/router.h"

namespace ladder {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any that is free
  // A bound one (listening_socket.h), of which the server takes a copy; host and port only name it then. -1: it opens its
  // own.
  int listening_socket = -1;
  std::string ssl_certfile = {}, ssl_keyfile = {};  // PEM; both or none
  std::vector<std::string> api_keys = {};           // none: everybody may ask
  CorsOptions cors = {};
  // "/llm": requests for /llm/health and, from a proxy that cuts it off, for /health.
  std::string root_path = {};

  int io_threads = 2;
  int worker_threads = 2;
  int64_t max_queued_work = 1024;  // requests that wait for a worker; more are answered 503
  int64_t max_connections = 4096;
  RequestLimits request = {};
  // Of the kernel's buffer for what a client has not read; more waits where it is made. 0: the system's choice.
  int64_t send_buffer_bytes = 256 * 1024;

  using Milliseconds = std::chrono::milliseconds;
  Milliseconds idle_timeout{60'000};  // between two requests of a connection
  // From a request's first byte, or the connection's begin, to its headers' end.
  Milliseconds header_timeout{10'000};
  Milliseconds body_timeout{60'000};   // from there to the end of its body
  Milliseconds write_timeout{30'000};  // in which a client must read something of what waits for it
  Milliseconds linger_timeout{1'000};  // for a client to close its side once we have closed ours

  // One line per answer, and one where a handler threw, which is a defect of ours. From any of the server's threads.
  std::function<void(std::string_view line)> access_log = {}, error_log = {};
};

class HttpServer {
 public:
  // Listens when it returns. Error: the address cannot be bound, the certificate cannot be read.
  HttpServer(HttpServerOptions options, Router router);
  ~HttpServer();  // stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;
  std::string address() const;  // "http://127.0.0.1:8000"

  // Takes no more connections, and closes each one after its next answer. Answers under way go on.
  void stop_accepting();
  // Waits until no answer is under way. False: some still are.
  bool wait_until_idle(std::chrono::milliseconds timeout);
  // Cuts all connections and destroys their answers; returns when no handler runs any more.
  void stop();

  int64_t num_connections() const;
  int64_t num_requests() const;  // being answered

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ladder

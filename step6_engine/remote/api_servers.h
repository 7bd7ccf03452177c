#pragma once
// Several API servers in front of one engine: processes of this program that speak HTTP, parse, render and tokenise, where
// one process would be kept busy by it.
//
//   clients ==> one listening socket <== API server 0: HTTP, tokenizer, SocketEngineClient ----,
//                                    <== API server 1: HTTP, tokenizer, SocketEngineClient ----+--> this process:
//                                                                                                   serve_engine() for
//                                                                                                   each, one EngineClient
//
// All accept from one socket that they inherit, and not each from one of its own with SO_REUSEPORT: there the kernel deals
// connections out to the sockets before anybody accepts them, and those of a server that was killed or hangs are lost. Here
// a connection waits until some server takes it, also one that was just started.
//
// A server that ends takes its own connections with it; their requests are aborted, and it is started again. vLLM:
// vllm/v1/utils.py (APIServerProcessManager).
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "step2_model/tokenizer/tokenizer.h"
#include "step6_engine/process/child_process.h"
#include "step6_engine/remote/serve_engine.h"
#include "step6_engine/remote/socket_engine_client.h"

namespace ladder {

struct ApiServersOptions {
  int count = 1;
  std::vector<std::string> arguments;      // make the program call run_api_server()
  std::string program = "/proc/self/exe";  // this one
  FileDescriptor listening_socket;         // which each of them has as ApiServers::kListeningSocket
  // Until a server that has ended is started again; doubled each time up to the second, and as at first for one that
  // has served for a minute.
  std::chrono::milliseconds first_pause{100}, max_pause{10'000};
  std::function<void(std::string_view line)> log = {};  // which server has ended, and how
};

class ApiServers {
 public:
  static constexpr int kListeningSocket = ChildProcess::kFirstInherited;

  // Returns when all of them take connections. `client` keeps the bounds on the queue for all of them together; it and
  // `turns` (as in ServeEngineOptions) outlive this. Throws what one of them says that keeps it from serving.
  ApiServers(EngineClient& client, TurnListeners* turns, const SchedulerConfig& config,
             ApiServersOptions options);
  ~ApiServers();  // stop(0)
  ApiServers(const ApiServers&) = delete;

  // Closes the listening socket, has every server go on for at most `drain` with what it has, and returns when all have
  // ended. The engine is not stopped.
  void stop(std::chrono::milliseconds drain);

 private:
  struct Place;  // of a server, and of those after it

  void run(Place& place);
  // From the start of a process to its end, which it tells. `failure`: what the process said keeps it from serving.
  std::string serve_once(Place& place, std::exception_ptr& failure);

  EngineClient& client_;
  TurnListeners* const turns_;
  const SchedulerConfig config_;
  ApiServersOptions options_;  // its socket under mutex_

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Place>> places_;
  int64_t num_started_ = 0;  // processes, each of which has its own prefix for its requests' ids
  bool all_serve_ = false;
  bool stopping_ = false;
};

// --- in the child ------------------------------------------------------------------------------------------

// The parent's engine.
class ApiServerConnection {
 public:
  ApiServerConnection(std::unique_ptr<MessageSocket> socket, SchedulerConfig config);
  ~ApiServerConnection();

  const SchedulerConfig& config() const { return config_; }
  // To be called once; the client lives as long as the connection. `tokenizer` is the engine's, or null; of the options
  // the bounds count.
  EngineClient& client(std::shared_ptr<const Tokenizer> tokenizer, EngineClientOptions options);
  // Connections are taken from now on.
  void tell_serving();

 private:
  friend void run_api_server(int, const std::function<void(ApiServerConnection&)>&);

  std::unique_ptr<MessageSocket> socket_;  // until there is a client, which owns it then
  MessageSocket& messages_;
  const SchedulerConfig config_;
  std::unique_ptr<SocketEngineClient> client_;
};

// `serve` makes the server, says so (tell_serving), and returns when it is told to end (SIGTERM). What it throws is told
// to the parent, which reports it. Error: the descriptor is not a connection to a parent of the same version.
void run_api_server(int descriptor, const std::function<void(ApiServerConnection&)>& serve);

}  // namespace ladder

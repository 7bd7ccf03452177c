#pragma once
// The same engine behind each EngineClient.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "step6_engine/remote/serve_engine.h"
#include "step6_engine/remote/socket_engine_client.h"
#include "step6_engine/thread_engine_client.h"

namespace ladder::testing {

// Its deleter also ends what stands behind the client.
using ClientPointer = std::unique_ptr<EngineClient, std::function<void(EngineClient*)>>;
using MakeClient = ClientPointer (*)(std::unique_ptr<Engine>, EngineClientOptions);

inline ClientPointer client_in_this_process(std::unique_ptr<Engine> engine, EngineClientOptions options) {
  return {new ThreadEngineClient(std::move(engine), std::move(options)), std::default_delete<EngineClient>()};
}

struct SocketPair {
  SocketPair() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw Error("socketpair");
    user = FileDescriptor(ends[0]);
    engine = FileDescriptor(ends[1]);
  }
  FileDescriptor user, engine;
};

// serve_engine() on a thread of its own, which ends with this.
class ServerThread {
 public:
  ServerThread(FileDescriptor end, std::unique_ptr<Engine> engine)
      : ServerThread(std::move(end),
                     [engine = std::make_shared<std::unique_ptr<Engine>>(std::move(engine))](
                         MessageSocket& socket) { serve_engine(socket, std::move(*engine)); }) {}
  ServerThread(FileDescriptor end, std::function<void(MessageSocket&)> serve)
      : socket_(std::move(end)), thread_([this, serve = std::move(serve)] {
          try {
            serve(socket_);
          } catch (const std::exception& error) {
            error_ = error.what();
            socket_.shut_down();
          }
        }) {}
  ~ServerThread() {
    socket_.shut_down();
    if (thread_.joinable()) thread_.join();
  }
  // Until it ends by itself; what it threw.
  std::string join() {
    thread_.join();
    return error_;
  }

 private:
  MessageSocket socket_;
  std::string error_;
  std::thread thread_;
};

// Both ends of the socket in this process, so that a test can look at both. `serve` is what ServerThread takes.
template <class Serve>
ClientPointer client_of_server(Serve serve, const SchedulerConfig& config, EngineClientOptions options) {
  SocketPair pair;
  auto socket = std::make_unique<MessageSocket>(std::move(pair.user));
  auto server = std::make_shared<ServerThread>(std::move(pair.engine), std::move(serve));
  const std::optional<Message> ready = socket->read();
  if (!ready || ready->type != static_cast<uint32_t>(EngineMessage::ready))
    throw Error("the engine is not ready");
  return {new SocketEngineClient(std::move(socket), config, nullptr, std::move(options)),
          [server](EngineClient* client) {
            delete client;
            if (const std::string error = server->join(); !error.empty())
              ADD_FAILURE() << "the engine's side: " << error;
          }};
}

inline ClientPointer client_over_a_socket(std::unique_ptr<Engine> engine, EngineClientOptions options) {
  const SchedulerConfig config = engine->scheduler().config();
  return client_of_server(std::move(engine), config, std::move(options));
}

}  // namespace ladder::testing

#pragma once
// The prefill and decode servers of `ladder serve --disaggregate`: processes of this program, started, watched, and started
// again when they end.
//
//   this process: router ==> a port of the loopback <== server: accepts from a socket that it inherits
//
// The sockets are this process', so a server that is started again has the address that it had. Until it accepts again
// connections to it wait, and the router's health checks say that it is out.
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "step6_engine/process/child_process.h"
#include "step6_engine/process/file_descriptor.h"

namespace ladder {

struct LocalServer {
  std::string name;  // for messages: "prefill server 0"
  std::vector<std::string>
      arguments;  // make the program a server that accepts from LocalServers::kListeningSocket
  FileDescriptor listening_socket;
};

class LocalServers {
 public:
  static constexpr int kListeningSocket = ChildProcess::kFirstInherited;

  // Starts all of them. `log`: which one has ended, and how.
  LocalServers(std::vector<LocalServer> servers, std::function<void(std::string_view line)> log);
  ~LocalServers();  // stop(0)
  LocalServers(const LocalServers&) = delete;

  // Error: one has ended; who ends before serving() is not started again, since it would end again.
  void expect_all_alive() const;
  void serving();  // all of them answer

  // Lets each go on for at most `drain` with what it has, and returns when all have ended.
  void stop(std::chrono::milliseconds drain);

 private:
  struct Place;  // of a server, and of those after it
  void run(Place& place);

  const std::function<void(std::string_view line)> log_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Place>> places_;
  std::string failure_;
  bool serving_ = false, stopping_ = false;
};

}  // namespace ladder

#pragma once
// A bad network: it stands before a listener, and delays, holds back or cuts what goes through it.
#include <atomic>
#include <chrono>
#include <list>
#include <string>
#include <thread>

#include "step7_parallel/hosts/tcp_socket.h"

namespace ladder::testing {

class TcpProxy {
 public:
  explicit TcpProxy(HostAddress target);
  ~TcpProxy();

  const HostAddress& address() const { return address_; }
  // From now on, in both directions.
  void delay(std::chrono::milliseconds time) { delay_ = time; }
  void stall() { is_stalled_ = true; }  // the connections stay, and nothing comes through
  void cut() { is_cut_ = true; }        // they end, and there are no new ones
  void drop() { is_dropped_ = true; }   // they end, once
  int64_t bytes() const { return bytes_; }

 private:
  struct Piece {
    std::chrono::steady_clock::time_point leaves;
    std::string bytes;
  };
  struct Direction {
    int from = -1, to = -1;
    std::list<Piece> pieces;
  };
  struct Connection {
    FileDescriptor client, server;
    Direction there, back;
  };

  void relay();
  bool pass_on(Direction& direction);  // false: an end

  const HostAddress target_;
  FileDescriptor listener_;
  HostAddress address_;
  std::atomic<std::chrono::milliseconds> delay_{};
  std::atomic<bool> is_stalled_ = false, is_cut_ = false, is_dropped_ = false, ending_ = false;
  std::atomic<int64_t> bytes_ = 0;
  std::thread thread_;
};

}  // namespace ladder::testing

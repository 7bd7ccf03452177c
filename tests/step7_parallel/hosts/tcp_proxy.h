#pragma once
// A bad network: it stands before a listener, and delays, holds back or cuts what goes through it.
#include <atomic>
#include <chrono>
#include <limits>
#include <list>
#include <string>
#include <thread>

#include "step7_parallel/hosts/tcp_socket.h"

namespace ladder::testing {

class TcpProxy {
 public:
  explicit TcpProxy(HostAddress target, const std::string& host = "127.0.0.1");  // listens there
  ~TcpProxy();

  const HostAddress& address() const { return address_; }
  // From now on, in both directions.
  void delay(std::chrono::milliseconds time) { delay_ = time; }
  void stall() { stall_behind(0); }  // the connections stay, and nothing comes through
  void stall_behind(int64_t bytes) { most_bytes_ = bytes; }  // ... once so many are through, or some more
  void cut() { is_cut_ = true; }                             // they end, and there are no new ones
  void drop() { is_dropped_ = true; }                        // they end, once
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
  std::atomic<bool> is_cut_ = false, is_dropped_ = false, ending_ = false;
  std::atomic<int64_t> bytes_ = 0, most_bytes_ = std::numeric_limits<int64_t>::max();
  std::thread thread_;
};

}  // namespace ladder::testing

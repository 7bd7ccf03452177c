#include "tests/step7_parallel/hosts/tcp_proxy.h"

#include <sys/socket.h>

#include <cerrno>

namespace ladder::testing {

namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

TcpProxy::TcpProxy(HostAddress target, const std::string& host)
    : target_(std::move(target)),
      listener_(listen_on({host, 0}, 64)),
      address_(local_address(listener_.number())),
      thread_([this] { relay(); }) {}

TcpProxy::~TcpProxy() {
  ending_ = true;
  thread_.join();
}

bool TcpProxy::pass_on(Direction& direction) {
  char bytes[1 << 16];
  const ssize_t count = ::recv(direction.from, bytes, sizeof bytes, MSG_DONTWAIT);
  const bool ended = count == 0 || (count < 0 && errno != EAGAIN);
  if (count > 0)
    direction.pieces.push_back({Clock::now() + delay_.load(), {bytes, static_cast<size_t>(count)}});
  while (!direction.pieces.empty() && (ended || direction.pieces.front().leaves <= Clock::now())) {
    std::string& piece = direction.pieces.front().bytes;
    const ssize_t sent =
        ::send(direction.to, piece.data(), piece.size(), MSG_NOSIGNAL | (ended ? 0 : MSG_DONTWAIT));
    if (sent < 0) return errno == EAGAIN;
    bytes_ += sent;
    piece.erase(0, static_cast<size_t>(sent));
    if (!piece.empty()) break;
    direction.pieces.pop_front();
  }
  return !ended;
}

void TcpProxy::relay() {
  std::list<Connection> connections;
  while (!ending_) {
    if (is_dropped_.exchange(false)) connections.clear();
    if (is_cut_) {
      connections.clear();
      listener_.close();
    } else if (bytes_ < most_bytes_) {
      FileDescriptor client(::accept4(listener_.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      std::string why;
      FileDescriptor server =
          client ? try_to_connect(target_, Clock::now() + std::chrono::seconds(1), why) : FileDescriptor();
      if (server) {
        const Direction there{client.number(), server.number(), {}},
            back{server.number(), client.number(), {}};
        connections.push_back({std::move(client), std::move(server), there, back});
      }
      std::erase_if(connections,
                    [this](Connection& one) { return !pass_on(one.there) || !pass_on(one.back); });
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

}  // namespace ladder::testing

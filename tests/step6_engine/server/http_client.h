#pragma once
// A client of the loopback that sends whatever bytes a test wants, and a server to send them to.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

namespace ladder::testing {

using namespace std::chrono_literals;

// For what must come: long, since the machine may be busy with other things. Only a test that fails waits for it.
constexpr std::chrono::milliseconds kPatience = 30s;

class RawClient {
 public:
  // `receive_buffer`: the kernel's, to read slowly; 0: the system's choice.
  explicit RawClient(uint16_t port, int receive_buffer = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  RawClient(RawClient&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_), got_(std::move(other.got_)) {}
  ~RawClient() { close(); }

  bool connected() const { return connected_; }
  int descriptor() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  void shut_writing() { shutdown(fd_, SHUT_WR); }

  // False: the server has closed, or takes no more within the time.
  bool send(std::string_view bytes, std::chrono::milliseconds timeout = kPatience) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) {
        bytes.remove_prefix(static_cast<size_t>(sent));
      } else if (errno == EAGAIN) {
        pollfd waited{fd_, POLLOUT, 0};
        if (poll(&waited, 1, 10) < 0 || std::chrono::steady_clock::now() > until) return false;
      } else {
        return false;
      }
    }
    return true;
  }

  // One more piece into got(). False: the server has closed, or nothing came in time (closed() tells).
  bool receive(std::chrono::milliseconds timeout = kPatience) {
    pollfd waited{fd_, POLLIN, 0};
    if (poll(&waited, 1, static_cast<int>(timeout.count())) <= 0) return false;
    char buffer[65536];
    const ssize_t size = recv(fd_, buffer, sizeof buffer, 0);
    if (size > 0) return got_.append(buffer, static_cast<size_t>(size)), true;
    closed_ = true;
    return false;
  }
  // Reads until the text has come; false: it did not.
  bool receive_until(std::string_view text, std::chrono::milliseconds timeout = kPatience) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    for (size_t seen = 0; got_.find(text, seen) == got_.npos;) {
      seen = got_.size() < text.size() ? 0 : got_.size() - text.size();
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      if (left.count() <= 0 || !receive(left)) return false;
    }
    return true;
  }
  // All that comes until the server closes; a failure if it does not in time.
  const std::string& rest(std::chrono::milliseconds timeout = kPatience) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    while (std::chrono::steady_clock::now() < until && receive(100ms) | !closed_) {
    }
    EXPECT_TRUE(closed_) << "the server did not close; got: " << got_.substr(0, 400);
    return got_;
  }
  // One answer with a Content-Length, taken out of got(); empty: none came.
  std::string answer(std::chrono::milliseconds timeout = kPatience) {
    if (!receive_until("\r\n\r\n", timeout)) return {};
    const size_t head = got_.find("\r\n\r\n") + 4;
    const size_t field = got_.find("Content-Length: ");
    const size_t length = field < head ? std::stoul(got_.substr(field + 16)) : 0;
    while (got_.size() < head + length)
      if (!receive(timeout)) return {};
    std::string one = got_.substr(0, head + length);
    got_.erase(0, head + length);
    return one;
  }

  std::string& got() { return got_; }
  bool closed() const { return closed_; }

 private:
  int fd_ = -1;
  bool connected_ = false;
  std::string got_;
  bool closed_ = false;
};

inline int status_of(std::string_view answer) {
  return answer.starts_with("HTTP/1.1 ") ? std::stoi(std::string(answer.substr(9, 3))) : 0;
}

inline std::string body_of(const std::string& answer) {
  const size_t head = answer.find("\r\n\r\n");
  return head == answer.npos ? std::string() : answer.substr(head + 4);
}

// Waits until the condition holds; false: it did not in time.
template <class Condition>
bool eventually(Condition condition, std::chrono::milliseconds timeout = kPatience) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    usleep(1000);
  }
  return true;
}

}  // namespace ladder::testing

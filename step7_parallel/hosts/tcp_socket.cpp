#include "step7_parallel/hosts/tcp_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

using Clock = std::chrono::steady_clock;
using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// What a name stands for. A name server that does not answer now may do so later: nullptr, and `why`.
Addresses look_up(const HostAddress& address, int flags, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (code != 0) {
    why = ::gai_strerror(code);
    LADDER_CHECK(code == EAI_AGAIN, "{}: {}", address.host, why);
  }
  return {found, &freeaddrinfo};
}

template <class T>
void set_option(int socket, int level, int name, T value) {
  LADDER_CHECK(::setsockopt(socket, level, name, &value, sizeof value) == 0, "an option of a socket: {}",
               std::strerror(errno));
}

HostAddress in_numbers(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  const int code = ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, port,
                                 sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
  LADDER_CHECK(code == 0, "the address of a socket: {}", ::gai_strerror(code));
  return {host, std::atoi(port)};
}

}  // namespace

std::string HostAddress::str() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

HostAddress parse_host_address(std::string_view text, std::string_view flag, int least_port) {
  const size_t colon = text.rfind(':');
  HostAddress address;
  bool fits = colon != std::string_view::npos;
  if (fits) {
    std::string_view host = text.substr(0, colon);
    const bool has_brackets = host.size() >= 2 && host.front() == '[' && host.back() == ']';
    if (has_brackets) host = host.substr(1, host.size() - 2);
    fits = !host.empty() && (has_brackets || host.find(':') == std::string_view::npos);
    const std::string_view port = text.substr(colon + 1);
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
    fits = fits && error == std::errc{} && end == port.data() + port.size() && address.port >= least_port &&
           address.port < 65536;
    address.host = host;
  }
  LADDER_CHECK(fits, "{} {}: expected HOST:PORT, or [HOST]:PORT for a number of IPv6", flag, text);
  return address;
}

bool is_loopback(const std::string& host) {
  std::string why;
  const Addresses found = look_up({host, 0}, 0, why);
  LADDER_CHECK(found != nullptr, "{}: {}", host, why);
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    if (one->ai_family == AF_INET) {
      const auto* const address = reinterpret_cast<const sockaddr_in*>(one->ai_addr);
      if (ntohl(address->sin_addr.s_addr) >> 24 != 127) return false;
    } else {
      const auto* const address = reinterpret_cast<const sockaddr_in6*>(one->ai_addr);
      if (!IN6_IS_ADDR_LOOPBACK(&address->sin6_addr)) return false;
    }
  }
  return true;
}

FileDescriptor listen_on(const HostAddress& address, int backlog) {
  std::string why;
  const Addresses found = look_up(address, AI_PASSIVE, why);
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    FileDescriptor socket(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket) {
      set_option(socket.number(), SOL_SOCKET, SO_REUSEADDR, 1);
      if (::bind(socket.number(), one->ai_addr, one->ai_addrlen) == 0 &&
          ::listen(socket.number(), backlog) == 0)
        return socket;
    }
    why = std::strerror(errno);
  }
  fail("no connections can be taken at {}: {}", address.str(), why);
}

FileDescriptor try_to_connect(const HostAddress& address, Clock::time_point deadline, std::string& why) {
  const Addresses found = look_up(address, 0, why);
  int error = 0;
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    FileDescriptor socket(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    error = 0;
    if (!socket || (::connect(socket.number(), one->ai_addr, one->ai_addrlen) != 0 && errno != EINPROGRESS)) {
      error = errno;
    } else {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
      pollfd polled{socket.number(), POLLOUT, 0};
      socklen_t size = sizeof error;
      if (::poll(&polled, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30))) <= 0)
        error = ETIMEDOUT;
      else
        ::getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error == 0) return socket;
    why = std::strerror(error);
  }
  errno = error;
  return {};
}

void set_tcp_options(int socket, std::chrono::milliseconds cut) {
  constexpr int kProbes = 3;
  const auto milliseconds = static_cast<unsigned>(cut.count());
  const int seconds = std::max(1, static_cast<int>(cut.count() / 1000 / (kProbes + 1)));
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, milliseconds);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, seconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

void set_blocking(int socket, bool blocking) {
  const int flags = ::fcntl(socket, F_GETFL);
  LADDER_CHECK(
      flags >= 0 && ::fcntl(socket, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK) == 0,
      "a socket's flags: {}", std::strerror(errno));
}

void set_read_timeout(int socket, std::chrono::milliseconds timeout) {
  const auto count = timeout.count();
  set_option(socket, SOL_SOCKET, SO_RCVTIMEO, timeval{count / 1000, count % 1000 * 1000});
}

bool send_at_once(int socket, const void* bytes, size_t size) {
  return ::send(socket, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(size);
}

bool receive_whole(int socket, void* to, size_t size, Clock::time_point deadline) {
  for (size_t got = 0; got < size;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd polled{socket, POLLIN, 0};
    if (left <= 0 || (::poll(&polled, 1, static_cast<int>(left)) < 0 && errno != EINTR)) return false;
    const ssize_t count = ::recv(socket, static_cast<char*>(to) + got, size - got, MSG_DONTWAIT);
    if (count > 0)
      got += static_cast<size_t>(count);
    else if (count == 0 || (errno != EAGAIN && errno != EINTR))
      return false;
  }
  return true;
}

HostAddress local_address(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  LADDER_CHECK(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0,
               "the address of a socket: {}", std::strerror(errno));
  return in_numbers(address, size);
}

HostAddress peer_address(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  LADDER_CHECK(::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0,
               "the address of a peer: {}", std::strerror(errno));
  return in_numbers(address, size);
}

}  // namespace ladder

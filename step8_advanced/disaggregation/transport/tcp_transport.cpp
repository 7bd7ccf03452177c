// tcp://HOST:PORT: connections as hosts have among each other (step7_parallel/hosts/host_connections.h), whose ends have
// proved to each other that they know the secret before the first message.
//
// The kernel's buffers are left to grow by themselves (to net.ipv4.tcp_rmem and tcp_wmem, MiBs): a size that is set here is
// bounded by net.core.rmem_max, 208 KiB on most machines, and is never more than that from then on.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "step7_parallel/hosts/host_connections.h"
#include "step8_advanced/disaggregation/transport/kv_deadline.h"
#include "step8_advanced/disaggregation/transport/stream_channel.h"
#include "step8_advanced/disaggregation/transport/transport_rows.h"

namespace ladder {

namespace {

class TcpStream final : public ByteStream {
 public:
  explicit TcpStream(HostConnection connection)
      : socket_(std::move(connection.socket)), peer_(connection.peer.str()) {
    // A reader that takes its time is none that has gone, and with this option it would count as one: its machine answers,
    // but makes no room. Who waits has a deadline; where nothing is under way, SO_KEEPALIVE notices the cut.
    const unsigned never = 0;
    LADDER_CHECK(::setsockopt(socket_.number(), IPPROTO_TCP, TCP_USER_TIMEOUT, &never, sizeof never) == 0,
                 "an option of a socket: {}", std::strerror(errno));
  }

  void write(Pieces pieces, KvDeadline deadline) override {
    std::array<iovec, 3> parts;
    size_t count = 0;
    for (const std::span<const std::byte> piece : pieces)
      if (!piece.empty()) parts.at(count++) = {const_cast<std::byte*>(piece.data()), piece.size()};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    while (message.msg_iovlen > 0) {
      const ssize_t sent = ::sendmsg(socket_.number(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent >= 0)
        drop_front(message, static_cast<size_t>(sent));
      else
        wait_after_error(POLLOUT, deadline, "takes no more");
    }
  }

  void read(std::span<std::byte> bytes, KvDeadline deadline) override {
    while (!bytes.empty()) {
      const ssize_t got = ::recv(socket_.number(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (got == 0) throw KvChannelError(fmt::format("{}: the connection has ended", peer_));
      if (got > 0)
        bytes = bytes.subspan(static_cast<size_t>(got));
      else
        wait_after_error(POLLIN, deadline, "sends nothing");
    }
  }

  void close() noexcept override { ::shutdown(socket_.number(), SHUT_RDWR); }

 private:
  static void drop_front(msghdr& message, size_t size) {
    while (message.msg_iovlen > 0 && size >= message.msg_iov->iov_len) {
      size -= message.msg_iov->iov_len;
      ++message.msg_iov, --message.msg_iovlen;
    }
    if (size == 0) return;
    message.msg_iov->iov_base = static_cast<std::byte*>(message.msg_iov->iov_base) + size;
    message.msg_iov->iov_len -= size;
  }

  // After a call that gave errno: until the next may do better.
  void wait_after_error(short events, KvDeadline deadline, std::string_view what) {
    if (errno == EINTR) return;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
      throw KvChannelError(fmt::format("{}: {}", peer_, std::strerror(errno)));
    pollfd polled{socket_.number(), events, 0};
    const auto left = left_until(deadline).count();
    if (::poll(&polled, 1, static_cast<int>(left)) == 0 && is_over(deadline))
      throw KvChannelError(fmt::format("{}: it {} and the time is over", peer_, what));
  }

  const FileDescriptor socket_;
  const std::string peer_;
};

class TcpListener final : public KvListener {
 public:
  TcpListener(const HostAddress& address, const HostSecret& secret) : listener_(address, secret) {}

  std::string address() const override { return "tcp://" + listener_.address().str(); }

  std::unique_ptr<KvChannel> accept(KvDeadline deadline) override {
    std::optional<HostConnection> connection = listener_.accept(left_until(deadline));
    if (!connection) return nullptr;
    return std::make_unique<StreamChannel>(std::make_unique<TcpStream>(std::move(*connection)));
  }

  void close() noexcept override { listener_.close(); }

 private:
  HostListener listener_;
};

HostAddress parse_place(std::string_view place, int least_port) {
  const bool has_host = place.find(':') != std::string_view::npos;
  return parse_host_address(has_host ? std::string(place) : fmt::format("127.0.0.1:{}", place), "tcp://",
                            least_port);
}

}  // namespace

std::unique_ptr<KvListener> listen_by_tcp(std::string_view place, const HostSecret& secret) {
  const HostAddress address = parse_place(place, 0);
  expect_secret_for(address.host, secret, "tcp://");
  return std::make_unique<TcpListener>(address, secret);
}

std::unique_ptr<KvChannel> connect_by_tcp(std::string_view place, KvDeadline deadline,
                                          const HostSecret& secret, KvListening listening) {
  HostConnection connection = connect_to_host(parse_place(place, 1), secret, left_until(deadline),
                                              {.waits_for_listener = listening == KvListening::may_begin});
  return std::make_unique<StreamChannel>(std::make_unique<TcpStream>(std::move(connection)));
}

}  // namespace ladder

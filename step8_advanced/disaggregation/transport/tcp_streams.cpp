#include "step8_advanced/disaggregation/transport/tcp_streams.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "step8_advanced/disaggregation/transport/kv_deadline.h"

namespace ladder {

namespace {

constexpr size_t kMostParts = 64;  // of one system call

// The first `size` bytes are done.
void drop_front(std::span<iovec>& parts, size_t size) {
  while (!parts.empty() && size >= parts.front().iov_len) {
    size -= parts.front().iov_len;
    parts = parts.subspan(1);
  }
  if (size == 0) return;
  parts.front().iov_base = static_cast<std::byte*>(parts.front().iov_base) + size;
  parts.front().iov_len -= size;
}

}  // namespace

TcpStreams::TcpStreams(std::vector<HostConnection> connections) : connections_(std::move(connections)) {
  // A reader that takes its time is none that has gone, and with this option it would count as one: its machine answers,
  // but makes no room. Who waits has a deadline; where nothing is under way, SO_KEEPALIVE notices the cut.
  const unsigned never = 0;
  for (const HostConnection& connection : connections_)
    LADDER_CHECK(
        ::setsockopt(connection.socket.number(), IPPROTO_TCP, TCP_USER_TIMEOUT, &never, sizeof never) == 0,
        "an option of a socket: {}", std::strerror(errno));
}

void TcpStreams::write(Pieces pieces, KvDeadline deadline) {
  Parts parts(connections_.size());
  for (const std::span<const std::byte> piece : pieces) deal_out(piece, written_, parts);
  move_all(parts, POLLOUT, deadline, "takes no more", [](int socket, std::span<iovec> some) {
    msghdr message{};
    message.msg_iov = some.data();
    message.msg_iovlen = some.size();
    return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  });
}

void TcpStreams::read(std::span<std::byte> bytes, KvDeadline deadline) {
  Parts parts(connections_.size());
  deal_out(bytes, read_, parts);
  move_all(parts, POLLIN, deadline, "sends nothing", [](int socket, std::span<iovec> some) {
    msghdr message{};
    message.msg_iov = some.data();
    message.msg_iovlen = some.size();
    return ::recvmsg(socket, &message, MSG_DONTWAIT);
  });
}

void TcpStreams::close() noexcept {
  for (const HostConnection& connection : connections_) ::shutdown(connection.socket.number(), SHUT_RDWR);
}

bool TcpStreams::has_bytes() const {
  char byte = 0;
  return ::recv(connections_.front().socket.number(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

void TcpStreams::deal_out(std::span<const std::byte> bytes, uint64_t& position, Parts& parts) const {
  const size_t count = connections_.size();
  while (!bytes.empty()) {
    const size_t size = count == 1 ? bytes.size() : std::min(bytes.size(), kStripe - position % kStripe);
    parts[position / kStripe % count].push_back({const_cast<std::byte*>(bytes.data()), size});
    position += size;
    bytes = bytes.subspan(size);
  }
}

template <class Some>
void TcpStreams::move_all(Parts& parts, short events, KvDeadline deadline, std::string_view what, Some some) {
  std::vector<std::span<iovec>> left(parts.begin(), parts.end());
  std::vector<pollfd> polled;
  for (;;) {
    bool is_moving = false;
    polled.clear();
    for (size_t i = 0; i < left.size(); ++i) {
      if (left[i].empty()) continue;
      const HostConnection& connection = connections_[i];
      const ssize_t size =
          some(connection.socket.number(), left[i].first(std::min(left[i].size(), kMostParts)));
      if (size == 0) throw KvChannelError(fmt::format("{}: the connection has ended", connection.peer.str()));
      if (size < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
        throw KvChannelError(fmt::format("{}: {}", connection.peer.str(), std::strerror(errno)));
      is_moving |= size > 0 || errno == EINTR;
      if (size > 0) drop_front(left[i], static_cast<size_t>(size));
      if (!left[i].empty()) polled.push_back({connection.socket.number(), events, 0});
    }
    if (polled.empty()) return;
    if (is_moving) continue;
    const int number = ::poll(polled.data(), polled.size(), static_cast<int>(left_until(deadline).count()));
    if (number == 0 && is_over(deadline))
      throw KvChannelError(
          fmt::format("{}: it {} and the time is over", connections_.front().peer.str(), what));
  }
}

}  // namespace ladder

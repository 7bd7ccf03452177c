// shm://NAME: two rings in memory without a name, one for each way, whose descriptors the listener sends over an abstract unix
// socket. Nothing of it is in any folder, and all of it goes with the last process that has it, however that ends.
//
// Nothing more is ever said over the socket: it tells that the other process is gone (its end hangs up), which whoever waits
// looks at twenty times a second.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

#include "step8_advanced/disaggregation/transport/kv_deadline.h"
#include "step8_advanced/disaggregation/transport/kv_ring.h"
#include "step8_advanced/disaggregation/transport/stream_channel.h"
#include "step8_advanced/disaggregation/transport/transport_rows.h"

namespace ladder {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kRingBytes = 8 * KvRing::kPiece;
constexpr std::chrono::milliseconds kLook{50};   // how long a dead peer goes unnoticed
constexpr std::chrono::milliseconds kPause{10};  // between attempts to connect
constexpr int kBacklog = 128;
constexpr std::array<char, 8> kGreeting = {'L', 'A', 'D', 'D', 'E', 'R', 'K', '1'};

class RingStream final : public ByteStream {
 public:
  RingStream(FileDescriptor socket, KvRing out, KvRing in)
      : socket_(std::move(socket)), out_(std::move(out)), in_(std::move(in)) {}

  void write(Pieces pieces, KvDeadline deadline) override {
    for (std::span<const std::byte> piece : pieces)
      all_of(piece, deadline, "takes no more",
             [&](auto rest, KvDeadline until) { return out_.write(rest, until); });
  }
  void read(std::span<std::byte> bytes, KvDeadline deadline) override {
    all_of(bytes, deadline, "sends nothing",
           [&](auto rest, KvDeadline until) { return in_.read(rest, until); });
  }
  void close() noexcept override {
    out_.close();
    in_.close();
  }

 private:
  // some(what is left, until when) returns how much it did.
  template <class Bytes, class Some>
  void all_of(Bytes rest, KvDeadline deadline, std::string_view what, Some some) {
    bool is_gone = false;
    while (!rest.empty()) {
      const size_t done = some(rest, std::min<KvDeadline>(deadline, Clock::now() + kLook));
      rest = rest.subspan(done);
      if (rest.empty() || (done > 0 && !is_over(deadline))) continue;
      // Once more after its end was seen: it may have written just before.
      if (is_gone) throw KvChannelError("the process at the other end of the shared memory is gone");
      if (is_over(deadline))
        throw KvChannelError(fmt::format("the other end of the shared memory {} and the time is over", what));
      is_gone = has_hung_up();
    }
  }
  bool has_hung_up() const {
    pollfd polled{socket_.number(), POLLIN, 0};
    return ::poll(&polled, 1, 0) > 0;
  }

  const FileDescriptor socket_;
  KvRing out_, in_;
};

struct SocketAddress {
  sockaddr_un address{};
  socklen_t size = 0;
};

SocketAddress socket_address(std::string_view name) {
  const std::string path = fmt::format("ladder-kv/{}", name);
  SocketAddress result;
  LADDER_CHECK(!name.empty() && path.size() + 1 <= sizeof result.address.sun_path,
               "shm://{}: expected a name of 1 to {} letters", name,
               sizeof result.address.sun_path - 1 - std::strlen("ladder-kv/"));
  result.address.sun_family = AF_UNIX;
  std::memcpy(result.address.sun_path + 1, path.data(), path.size());  // behind a zero: in no folder
  result.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
  return result;
}

// An abstract name has no permissions: any user's process may listen or connect there.
bool is_mine(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

// A message that carries two descriptors, and where they lie in it.
struct DescriptorMessage {
  std::array<char, 8> greeting = kGreeting;
  iovec part{greeting.data(), greeting.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control{};
  msghdr header{};

  DescriptorMessage() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
};

bool send_rings(int socket, const KvRing& first, const KvRing& second) {
  DescriptorMessage message;
  cmsghdr* const rights = CMSG_FIRSTHDR(&message.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(2 * sizeof(int));
  const int numbers[2] = {first.descriptor(), second.descriptor()};
  std::memcpy(CMSG_DATA(rights), numbers, sizeof numbers);
  return ::sendmsg(socket, &message.header, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(kGreeting.size());
}

// None: the listener has gone, or there is no listener of Ladder's.
std::array<FileDescriptor, 2> receive_rings(int socket, KvDeadline deadline) {
  pollfd polled{socket, POLLIN, 0};
  ::poll(&polled, 1, static_cast<int>(left_until(deadline).count()));
  DescriptorMessage message;
  message.greeting = {};
  const ssize_t count = ::recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  std::array<FileDescriptor, 2> rings;
  const cmsghdr* const rights = count > 0 ? CMSG_FIRSTHDR(&message.header) : nullptr;
  if (rights == nullptr || rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) return {};
  // Those that have come are ours to close, whatever else is wrong.
  int numbers[2] = {-1, -1};
  std::memcpy(numbers, CMSG_DATA(rights), std::min(sizeof numbers, rights->cmsg_len - CMSG_LEN(0)));
  for (size_t i = 0; i < rings.size(); ++i) rings[i] = FileDescriptor(numbers[i]);
  if (message.greeting != kGreeting || !rings[1]) return {};
  return rings;
}

class MemoryListener final : public KvListener {
 public:
  explicit MemoryListener(std::string_view name)
      : address_(fmt::format("shm://{}", name)),
        socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    const SocketAddress at = socket_address(name);
    LADDER_CHECK(socket_ &&
                     ::bind(socket_.number(), reinterpret_cast<const sockaddr*>(&at.address), at.size) == 0 &&
                     ::listen(socket_.number(), kBacklog) == 0,
                 "{}: no connections can be taken: {}", address_, std::strerror(errno));
  }

  std::string address() const override { return address_; }

  std::unique_ptr<KvChannel> accept(KvDeadline deadline) override {
    while (!is_closed_) {
      pollfd polled{socket_.number(), POLLIN, 0};
      ::poll(&polled, 1, static_cast<int>(left_until(deadline).count()));
      FileDescriptor socket(::accept4(socket_.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket) {
        if (auto channel = greet(std::move(socket))) return channel;
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        std::this_thread::sleep_for(kPause);  // that will pass
      }
      if (is_over(deadline)) break;
    }
    return nullptr;
  }

  void close() noexcept override {
    is_closed_ = true;  // first: whoever is woken looks at it
    ::shutdown(socket_.number(), SHUT_RDWR);
  }

 private:
  static std::unique_ptr<KvChannel> greet(FileDescriptor socket) {
    if (!is_mine(socket.number())) return nullptr;
    try {
      KvRing out = KvRing::create(kRingBytes), in = KvRing::create(kRingBytes);
      if (!send_rings(socket.number(), out, in)) return nullptr;  // it did not wait for us
      return std::make_unique<StreamChannel>(
          std::make_unique<RingStream>(std::move(socket), std::move(out), std::move(in)));
    } catch (const Error&) {  // no memory for so many at once: who comes is refused
      return nullptr;
    }
  }

  const std::string address_;
  const FileDescriptor socket_;
  std::atomic<bool> is_closed_{false};
};

}  // namespace

std::unique_ptr<KvListener> listen_in_memory(std::string_view place, const HostSecret& /*secret*/) {
  return std::make_unique<MemoryListener>(place);
}

std::unique_ptr<KvChannel> connect_in_memory(std::string_view place, KvDeadline deadline,
                                             const HostSecret& /*secret*/, KvListening listening) {
  const SocketAddress at = socket_address(place);
  std::string why;
  do {
    FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    LADDER_CHECK(socket, "shm://{}: {}", place, std::strerror(errno));
    if (::connect(socket.number(), reinterpret_cast<const sockaddr*>(&at.address), at.size) == 0) {
      LADDER_CHECK(is_mine(socket.number()), "shm://{}: a process of another user listens there", place);
      auto [in, out] = receive_rings(socket.number(), deadline);
      if (in)
        return std::make_unique<StreamChannel>(std::make_unique<RingStream>(
            std::move(socket), KvRing::open(std::move(out)), KvRing::open(std::move(in))));
      why = "the connection ended before its memory had come";
    } else {
      why = std::strerror(errno);
      // Its name goes with the listener. (One whose queue is full says EAGAIN.)
      LADDER_CHECK(errno != ECONNREFUSED || listening == KvListening::may_begin,
                   "shm://{}: no connection: {}", place, why);
    }
    std::this_thread::sleep_for(kPause);
  } while (!is_over(deadline));
  fail("shm://{}: no connection within the time: {}", place, why);
}

}  // namespace ladder

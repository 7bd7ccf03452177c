#include "step8_advanced/disaggregation/transport/memory_streams.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

#include "step8_advanced/disaggregation/transport/kv_deadline.h"

namespace ladder {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{50};   // how long a dead peer goes unnoticed
constexpr std::chrono::milliseconds kPause{10};  // between attempts to connect
constexpr int kBacklog = 128;
constexpr std::array<char, 8> kGreeting = {'L', 'A', 'D', 'D', 'E', 'R', 'K', '1'};
constexpr size_t kMaxRings = 2 * kMaxMemoryStreams;

// some(what is left, until when) returns how much it did.
template <class Bytes, class Some>
void all_of(const FileDescriptor& socket, Bytes rest, KvDeadline deadline, std::string_view what, Some some) {
  bool is_gone = false;
  while (!rest.empty()) {
    const size_t done = some(rest, std::min<KvDeadline>(deadline, Clock::now() + kLook));
    rest = rest.subspan(done);
    if (rest.empty() || (done > 0 && !is_over(deadline))) continue;
    // Once more after its end was seen: it may have written just before.
    if (is_gone) throw KvChannelError("the process at the other end of the shared memory is gone");
    if (is_over(deadline))
      throw KvChannelError(fmt::format("the other end of the shared memory {} and the time is over", what));
    is_gone = has_hung_up(socket);
  }
}

struct SocketAddress {
  sockaddr_un address{};
  socklen_t size = 0;
};

bool may_be_in_a_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
         c == '.';
}

SocketAddress socket_address(std::string_view scheme, std::string_view name) {
  const std::string folder = scheme == "shm" ? "ladder-kv/" : fmt::format("ladder-kv-{}/", scheme);
  const std::string path = fmt::format("{}{}", folder, name);
  SocketAddress result;
  LADDER_CHECK(!name.empty() && path.size() + 1 <= sizeof result.address.sun_path &&
                   std::ranges::all_of(name, may_be_in_a_name),
               "{}://{}: expected a name of 1 to {} letters, digits, '-', '_' and '.'", scheme, name,
               sizeof result.address.sun_path - 1 - folder.size());
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

// A message that carries descriptors, and where they lie in it.
struct DescriptorMessage {
  std::array<char, 8> greeting = kGreeting;
  iovec part{greeting.data(), greeting.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxRings * sizeof(int))> control{};
  msghdr header{};

  explicit DescriptorMessage(size_t num_descriptors) {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(num_descriptors * sizeof(int));
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
};

bool send_rings(int socket, std::span<const KvRing> rings) {
  DescriptorMessage message(rings.size());
  std::array<int, kMaxRings> numbers;
  const size_t size = rings.size() * sizeof(int);
  for (size_t i = 0; i < rings.size(); ++i) numbers[i] = rings[i].descriptor();
  cmsghdr* const rights = CMSG_FIRSTHDR(&message.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(size);
  std::memcpy(CMSG_DATA(rights), numbers.data(), size);
  return ::sendmsg(socket, &message.header, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(kGreeting.size());
}

// None: the listener has gone, or there is no listener of Ladder's.
std::vector<FileDescriptor> receive_rings(int socket, size_t num_rings, KvDeadline deadline) {
  pollfd polled{socket, POLLIN, 0};
  ::poll(&polled, 1, static_cast<int>(left_until(deadline).count()));
  DescriptorMessage message(kMaxRings);
  message.greeting = {};
  const ssize_t count = ::recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  const cmsghdr* const rights = count > 0 ? CMSG_FIRSTHDR(&message.header) : nullptr;
  if (rights == nullptr || rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) return {};
  // Those that have come are ours to close, whatever else is wrong.
  std::array<int, kMaxRings> numbers;
  const size_t size = std::min(sizeof numbers, rights->cmsg_len - CMSG_LEN(0));
  std::memcpy(numbers.data(), CMSG_DATA(rights), size);
  std::vector<FileDescriptor> rings;
  for (size_t i = 0; i < size / sizeof(int); ++i) rings.emplace_back(numbers[i]);
  if (message.greeting != kGreeting || rings.size() != num_rings) return {};
  return rings;
}

}  // namespace

bool has_hung_up(const FileDescriptor& socket) {
  pollfd polled{socket.number(), POLLIN, 0};
  return ::poll(&polled, 1, 0) > 0;
}

void RingStream::write(Pieces pieces, KvDeadline deadline) {
  for (std::span<const std::byte> piece : pieces)
    all_of(*socket_, piece, deadline, "takes no more",
           [&](auto rest, KvDeadline until) { return out_.write(rest, until); });
}

void RingStream::read(std::span<std::byte> bytes, KvDeadline deadline) {
  all_of(*socket_, bytes, deadline, "sends nothing",
         [&](auto rest, KvDeadline until) { return in_.read(rest, until); });
}

void RingStream::close() noexcept {
  out_.close();
  in_.close();
}

MemoryStreamListener::MemoryStreamListener(std::string_view scheme, std::string_view name, int num_streams,
                                           size_t ring_bytes)
    : address_(fmt::format("{}://{}", scheme, name)),
      num_streams_(num_streams),
      ring_bytes_(ring_bytes),
      socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  const SocketAddress at = socket_address(scheme, name);
  LADDER_CHECK(socket_ &&
                   ::bind(socket_.number(), reinterpret_cast<const sockaddr*>(&at.address), at.size) == 0 &&
                   ::listen(socket_.number(), kBacklog) == 0,
               "{}: no connections can be taken: {}", address_, std::strerror(errno));
}

std::optional<MemoryStreams> MemoryStreamListener::accept(KvDeadline deadline) {
  while (!is_closed_) {
    pollfd polled{socket_.number(), POLLIN, 0};
    ::poll(&polled, 1, static_cast<int>(left_until(deadline).count()));
    FileDescriptor socket(::accept4(socket_.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      if (auto streams = greet(std::move(socket))) return streams;
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      std::this_thread::sleep_for(kPause);  // that will pass
    }
    if (is_over(deadline)) break;
  }
  return std::nullopt;
}

void MemoryStreamListener::close() noexcept {
  is_closed_ = true;  // first: whoever is woken looks at it
  ::shutdown(socket_.number(), SHUT_RDWR);
}

std::optional<MemoryStreams> MemoryStreamListener::greet(FileDescriptor socket) const {
  if (!is_mine(socket.number())) return std::nullopt;
  try {
    std::vector<KvRing> rings;  // out, in, out, in
    for (int i = 0; i < 2 * num_streams_; ++i) rings.push_back(KvRing::create(ring_bytes_));
    if (!send_rings(socket.number(), rings)) return std::nullopt;  // it did not wait for us
    MemoryStreams made;
    made.socket = std::make_shared<const FileDescriptor>(std::move(socket));
    for (size_t i = 0; i < rings.size(); i += 2)
      made.streams.push_back(
          std::make_unique<RingStream>(made.socket, std::move(rings[i]), std::move(rings[i + 1])));
    return made;
  } catch (const Error&) {  // no memory for so many at once: who comes is refused
    return std::nullopt;
  }
}

MemoryStreams connect_memory_streams(std::string_view scheme, std::string_view name, int num_streams,
                                     KvDeadline deadline, KvListening listening) {
  const SocketAddress at = socket_address(scheme, name);
  std::string why;
  do {
    FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    LADDER_CHECK(socket, "{}://{}: {}", scheme, name, std::strerror(errno));
    if (::connect(socket.number(), reinterpret_cast<const sockaddr*>(&at.address), at.size) == 0) {
      LADDER_CHECK(is_mine(socket.number()), "{}://{}: a process of another user listens there", scheme,
                   name);
      auto rings = receive_rings(socket.number(), static_cast<size_t>(2 * num_streams), deadline);
      if (!rings.empty()) {
        MemoryStreams made;
        made.socket = std::make_shared<const FileDescriptor>(std::move(socket));
        for (size_t i = 0; i < rings.size(); i += 2) {
          KvRing in = KvRing::open(std::move(rings[i])), out = KvRing::open(std::move(rings[i + 1]));
          made.streams.push_back(std::make_unique<RingStream>(made.socket, std::move(out), std::move(in)));
        }
        return made;
      }
      why = "the connection ended before its memory had come";
    } else {
      why = std::strerror(errno);
      // Its name goes with the listener. (One whose queue is full says EAGAIN.)
      LADDER_CHECK(errno != ECONNREFUSED || listening == KvListening::may_begin, "{}://{}: no connection: {}",
                   scheme, name, why);
    }
    std::this_thread::sleep_for(kPause);
  } while (!is_over(deadline));
  fail("{}://{}: no connection within the time: {}", scheme, name, why);
}

}  // namespace ladder

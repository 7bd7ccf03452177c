#include "step7_parallel/hosts/host_connections.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kVersion = 2;                        // of these three messages
constexpr auto kPause = std::chrono::milliseconds(50);  // between attempts

struct Greeting {
  char magic[8] = {'L', 'A', 'D', 'R', 'H', 'O', 'S', 'T'};
  uint32_t version = kVersion;
  Nonce nonce = draw_nonce();

  bool is_ladder() const { return std::memcmp(magic, "LADRHOST", sizeof magic) == 0; }
};
struct Answer {
  Greeting greeting;
  ConnectionNote note{};
  Proof proof{};
};
enum class Verdict : unsigned char { welcome, other_version, other_secret };
struct Welcome {
  Verdict verdict;
  Proof proof;
};
static_assert(sizeof(Greeting) == 44 && sizeof(Answer) == 108 && sizeof(Welcome) == 33, "no gaps");

// The connector's part. False: the connection ended. Error: it will never be one.
bool shake_hands(int socket, const HostAddress& address, const HostSecret& secret, const ConnectionNote& note,
                 Clock::time_point deadline) {
  Greeting theirs;
  if (!receive_whole(socket, &theirs, sizeof theirs, deadline)) return false;
  LADDER_CHECK(theirs.is_ladder(), "{}: what listens there is not Ladder", address.str());
  LADDER_CHECK(theirs.version == kVersion,
               "{}: another version of Ladder: its handshake is version {}, expected {}", address.str(),
               theirs.version, kVersion);
  Answer mine;
  mine.note = note;
  const auto proof = [&](HostRole role) {
    return prove(secret, role, theirs.nonce, mine.greeting.nonce, note);
  };
  mine.proof = proof(HostRole::connector);
  Welcome welcome;
  if (!send_at_once(socket, &mine, sizeof mine) || !receive_whole(socket, &welcome, sizeof welcome, deadline))
    return false;
  LADDER_CHECK(welcome.verdict != Verdict::other_version,
               "{}: it is another version of Ladder than version {}", address.str(), kVersion);
  // A listener that does not know the secret can say welcome, but not prove it.
  LADDER_CHECK(welcome.verdict == Verdict::welcome && same(welcome.proof, proof(HostRole::listener)),
               "{}: it has another secret: expected the same --secret-file, or {}, on all hosts",
               address.str(), kSecretVariable);
  return true;
}

}  // namespace

std::unique_ptr<MessageSocket> message_socket(HostConnection connection, std::chrono::milliseconds timeout) {
  auto socket = std::make_unique<MessageSocket>(std::move(connection.socket));
  socket->exchange_hello(timeout);
  return socket;
}

HostListener::HostListener(const HostAddress& address, HostSecret secret, HostTimeouts timeouts)
    : secret_(std::move(secret)),
      timeouts_(timeouts),
      socket_(listen_on(address, kBacklog)),
      address_{address.host, local_address(socket_.number()).port} {}

void HostListener::take_new_ones() {
  for (;;) {
    FileDescriptor socket(::accept4(socket_.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (is_closed_) return;
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN) {  // no descriptors or no memory: that will pass, more so without the oldest
        if (!unproved_.empty()) unproved_.pop_front();
        std::this_thread::sleep_for(kPause);
      }
      return;
    }
    try {
      const int number = socket.number();
      set_tcp_options(number, timeouts_.cut);
      const Greeting greeting;
      HostConnection connection{std::move(socket), peer_address(number)};
      if (!send_at_once(number, &greeting, sizeof greeting)) continue;
      if (std::ssize(unproved_) == kMostUnproved) unproved_.pop_front();
      unproved_.push_back({std::move(connection), greeting.nonce, Clock::now() + timeouts_.handshake, {}});
    } catch (const Error&) {  // it has gone already
    }
  }
}

bool HostListener::hear(Unproved& one, std::optional<HostConnection>& proved) {
  const int socket = one.connection.socket.number();
  char bytes[sizeof(Answer)];
  // Never more than the answer: what comes behind it is for whoever gets the connection.
  const ssize_t count = ::recv(socket, bytes, sizeof bytes - one.got.size(), 0);
  if (count == 0) return true;
  if (count < 0) return errno != EAGAIN && errno != EINTR;
  one.got.append(bytes, static_cast<size_t>(count));
  const size_t magic = std::min(one.got.size(), sizeof Greeting::magic);
  if (std::memcmp(one.got.data(), "LADRHOST", magic) != 0) return true;
  if (one.got.size() < sizeof(Answer)) return false;
  Answer answer;
  std::memcpy(&answer, one.got.data(), sizeof answer);
  const auto proof = [&](HostRole role) {
    return prove(secret_, role, one.nonce, answer.greeting.nonce, answer.note);
  };
  Welcome welcome{Verdict::welcome, {}};
  if (answer.greeting.version != kVersion)
    welcome.verdict = Verdict::other_version;
  else if (!same(answer.proof, proof(HostRole::connector)))
    welcome.verdict = Verdict::other_secret;
  else
    welcome.proof = proof(HostRole::listener);  // for nobody else: it is a sample of the secret
  if (send_at_once(socket, &welcome, sizeof welcome) && welcome.verdict == Verdict::welcome) {
    set_blocking(socket, true);
    one.connection.note = answer.note;
    proved = std::move(one.connection);
  }
  return true;
}

std::optional<HostConnection> HostListener::accept(std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  while (!is_closed_) {
    Clock::time_point until = deadline;
    std::vector<pollfd> polled = {{socket_.number(), POLLIN, 0}};
    for (const Unproved& one : unproved_) {
      polled.push_back({one.connection.socket.number(), POLLIN, 0});
      until = std::min(until, one.deadline);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    ::poll(polled.data(), polled.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30)));
    std::optional<HostConnection> proved;
    const Clock::time_point now = Clock::now();
    size_t at = 0;  // of `polled`; the listener's own is the first
    std::erase_if(unproved_, [&](Unproved& one) {
      ++at;
      return (!proved && polled[at].revents != 0 && hear(one, proved)) || now >= one.deadline;
    });
    if (polled[0].revents != 0) take_new_ones();
    if (proved) return proved;
    if (now >= deadline) break;
  }
  return {};
}

void HostListener::close() noexcept {
  is_closed_ = true;  // first: whoever is woken looks at it
  ::shutdown(socket_.number(), SHUT_RDWR);
}

HostConnection connect_to_host(const HostAddress& address, const HostSecret& secret,
                               std::chrono::milliseconds timeout, HostTimeouts timeouts,
                               const ConnectionNote& note) {
  const Clock::time_point deadline = Clock::now() + timeout;
  std::string why = "no attempt was made";
  do {
    FileDescriptor socket = try_to_connect(address, deadline, why);
    if (socket) {
      set_tcp_options(socket.number(), timeouts.cut);
      if (shake_hands(socket.number(), address, secret, note,
                      std::min(deadline, Clock::now() + timeouts.handshake))) {
        set_blocking(socket.number(), true);
        return {std::move(socket), address, note};
      }
      why = "the connection ended before the other side had said who it is";
    } else if (!timeouts.waits_for_listener && errno == ECONNREFUSED) {
      fail("{}: no connection: {}", address.str(), why);
    }
    std::this_thread::sleep_for(kPause);
  } while (Clock::now() < deadline);
  fail("{}: no connection within {} ms: {}", address.str(), timeout.count(), why);
}

}  // namespace ladder

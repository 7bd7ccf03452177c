// ucx://HOST:PORT: two lanes of UCX (ucx_lane.h), one for each way. What they are and where they begin is said over a connection as
// hosts have among each other (step7_parallel/hosts/host_connections.h), whose ends have proved the secret to each other:
//
//   connector                                                        listener
//      | <------------- connection, both have proved the secret ----------> |
//      | --- greeting: token, address of its reader ----------------------> |
//      | <------------------------ greeting: token, address of its reader - |
//      | ============== a first piece by UCX, both ways =================== |
//      | --- begun -------------------------------------------------------> |
//      | <------------------------------------------------------- begun --- |
//
// Nothing more is said over the connection, but it stays: it ends when the other process does, however that ends, which
// whoever waits looks at; UCX would tell late (20 s) or never. close() ends it too, and so wakes those who wait at both ends.
//
// Who may connect. Nobody hears where the lanes begin, or their tokens, who has not proved the secret; it may be empty
// on this machine alone, as with tcp://. On this machine (both ends at 127.0.0.1) the lanes are shared memory of this user's
// processes, and UCX opens no port. Between machines, or with UCX_TLS=tcp, UCX listens at ports of its own, on the interfaces
// that UCX_NET_DEVICES names (all of them, if none), and believes what it is sent there: whoever reaches them cannot put bytes
// into a channel without its token, but may confuse or end the process by nonsense in UCX's own protocol. So may a peer that has the
// secret, or one that is stopped in the middle of meeting: UCX 1.13 ends the process (an assertion) where a worker is destroyed
// whose answer to the other one's first piece has not left, which over TCP can be. That is not in our hands: so this row
// is none that is taken unasked, and between machines it is for a network of one's own.
#include "step8_advanced/disaggregation/transport/transport_rows.h"

#ifdef LADDER_HAS_UCX
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <deque>
#include <thread>

#include "step7_parallel/hosts/host_connections.h"
#include "step8_advanced/disaggregation/transport/kv_deadline.h"
#include "step8_advanced/disaggregation/transport/stream_channel.h"
#include "step8_advanced/disaggregation/transport/ucx_lane.h"

namespace ladder {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr size_t kMostMeetings = 16;  // at once; of more the oldest is dropped
constexpr std::chrono::seconds kMeeting{10};
constexpr milliseconds kStep{1};   // between looks at meetings
constexpr milliseconds kLook{50};  // how long a dead peer goes unnoticed
constexpr microseconds kFirstPause{20}, kLongestPause{2000};
// Nothing has come for so long since the other end has gone: nothing will. What UCX carries may take another way than the
// connection, and a longer one.
constexpr milliseconds kLastWords{100};

// The connection that proved the secret. It ends when either end closes the channel, or its process ends.
class Lifeline {
 public:
  explicit Lifeline(HostConnection connection) : connection_(std::move(connection)) {}

  int socket() const { return connection_.socket.number(); }
  std::string peer() const { return connection_.peer.str(); }
  bool is_closed() const { return is_closed_; }
  void close() noexcept {
    is_closed_ = true;  // first: whoever is woken looks at it
    ::shutdown(socket(), SHUT_RDWR);
  }

 private:
  const HostConnection connection_;
  std::atomic<bool> is_closed_{false};
};

// Until the deadline, until this end is closed, or the other one is gone.
class LifelinePatience final : public UcxPatience {
 public:
  // hears_last_words: of who reads what was sent before the end.
  LifelinePatience(const Lifeline& lifeline, KvDeadline deadline, std::string_view what,
                   bool hears_last_words)
      : lifeline_(lifeline), deadline_(deadline), what_(what), hears_last_words_(hears_last_words) {}

  void on_progress() override {
    pause_ = kFirstPause;
    look();
    if (Clock::now() - looked_ < kLook) return;
    pollfd polled{lifeline_.socket(), POLLIN, 0};
    heard(::poll(&polled, 1, 0) > 0);
  }
  void on_piece() override { is_silent_ = false; }

  void sleep(int descriptor) override {
    look();
    std::array<pollfd, 2> polled{{{lifeline_.socket(), POLLIN, 0}, {descriptor, POLLIN, 0}}};
    if (is_gone_) polled[0].fd = -1;  // it is for ever ready
    const auto left = std::chrono::ceil<microseconds>(deadline_ - Clock::now());
    const auto most = descriptor < 0 || is_gone_ ? pause_ : microseconds(kLook);
    const auto time = std::clamp(left, microseconds(0), most);
    const timespec limit{time.count() / 1'000'000, time.count() % 1'000'000 * 1000};
    ::ppoll(polled.data(), polled.size(), &limit, nullptr);
    pause_ = std::min(2 * pause_, kLongestPause);
    heard(polled[0].revents != 0);
  }

 private:
  void look() const {
    if (lifeline_.is_closed()) throw KvChannelError("the channel was closed");
    if (is_over(deadline_))
      throw KvChannelError(fmt::format("{}: it {} and the time is over", lifeline_.peer(), what_));
  }
  void heard(bool is_gone) {
    looked_ = Clock::now();
    is_gone_ |= is_gone;
    if (!is_gone_) return;
    if (!std::exchange(is_silent_, true)) silent_since_ = looked_;
    if (hears_last_words_ && looked_ - silent_since_ < kLastWords) return;
    look();  // this end's close looks alike
    throw KvChannelError(fmt::format("{}: the other end is gone", lifeline_.peer()));
  }

  const Lifeline& lifeline_;
  const KvDeadline deadline_;
  const std::string_view what_;
  const bool hears_last_words_;
  microseconds pause_ = kFirstPause;
  bool is_gone_ = false, is_silent_ = false;
  Clock::time_point silent_since_, looked_ = Clock::now();
};

struct Lanes {
  explicit Lanes(UcxReach reach) : out(reach), in(reach) {}
  UcxWriter out;
  UcxReader in;
};

class UcxStream final : public ByteStream {
 public:
  UcxStream(HostConnection connection, std::unique_ptr<Lanes> lanes)
      : lifeline_(std::move(connection)), lanes_(std::move(lanes)) {}

  void write(Pieces pieces, KvDeadline deadline) override {
    LifelinePatience patience(lifeline_, deadline, "takes no more", false);
    lanes_->out.write(pieces, patience);
  }
  void read(std::span<std::byte> bytes, KvDeadline deadline) override {
    LifelinePatience patience(lifeline_, deadline, "sends nothing", true);
    lanes_->in.read(bytes, patience);
  }
  void close() noexcept override { lifeline_.close(); }

 private:
  Lifeline lifeline_;
  const std::unique_ptr<Lanes> lanes_;
};

struct Greeting {
  std::array<char, 8> magic = {'L', 'D', 'U', 'C', 'X', '0', '0', '1'};
  UcxToken token{};
  uint64_t address_size = 0;
};
static_assert(sizeof(Greeting) == 32, "no gaps");
constexpr uint64_t kMaxAddress = 16 << 10;
constexpr char kBegun = 'B';

UcxReach reach_of(const HostAddress& address) {
  return is_loopback(address.host) ? UcxReach::machine : UcxReach::network;
}

ConnectionNote note_of_ucx() {
  ConnectionNote note{};
  std::memcpy(note.data(), "LDUCX1", 6);
  return note;
}

// Two ends that have proved the secret to each other, until both lanes carry. Waits for nothing.
class Meeting {
 public:
  explicit Meeting(HostConnection connection)
      : deadline_(Clock::now() + kMeeting),
        connection_(std::move(connection)),
        lanes_(std::make_unique<Lanes>(reach_of(connection_.peer))) {
    const std::string address = lanes_->in.address();
    Greeting greeting;
    greeting.token = lanes_->in.token();
    greeting.address_size = address.size();
    const auto bytes = std::bit_cast<std::array<char, sizeof greeting>>(greeting);
    say(std::string(bytes.begin(), bytes.end()) + address);
  }

  // Whether they do. KvChannelError: they never will.
  bool step() {
    if (!is_greeted_) hear_greeting();
    if (!is_greeted_) return false;
    const bool can_send = lanes_->out.has_begun(), can_receive = lanes_->in.has_begun();
    const bool has_begun = can_send && can_receive;  // both are asked: each answers the other end's
    if (has_begun && !std::exchange(has_said_, true)) say(std::string(1, kBegun));
    return has_begun && hear(1) && got_[0] == kBegun;
  }
  std::unique_ptr<KvChannel> channel() {
    return std::make_unique<StreamChannel>(
        std::make_unique<UcxStream>(std::move(connection_), std::move(lanes_)));
  }
  bool is_late() const { return is_over(deadline_); }

 private:
  void say(const std::string& bytes) {
    if (!send_at_once(connection_.socket.number(), bytes.data(), bytes.size())) end();
  }
  // Whether so many have come.
  bool hear(size_t size) {
    while (got_.size() < size) {
      std::array<char, 1024> some;
      const ssize_t count = ::recv(connection_.socket.number(), some.data(),
                                   std::min(some.size(), size - got_.size()), MSG_DONTWAIT);
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
      if (count <= 0) end();
      got_.append(some.data(), static_cast<size_t>(count));
    }
    return true;
  }
  void hear_greeting() {
    Greeting greeting;
    if (!hear(sizeof greeting)) return;
    std::memcpy(&greeting, got_.data(), sizeof greeting);
    if (greeting.magic != Greeting().magic || greeting.address_size == 0 ||
        greeting.address_size > kMaxAddress)
      throw KvChannelError("what the other end says is no greeting of Ladder's");
    if (!hear(sizeof greeting + greeting.address_size)) return;
    lanes_->out.begin(got_.substr(sizeof greeting), greeting.token);
    got_.clear();
    is_greeted_ = true;
  }
  [[noreturn]] static void end() { throw KvChannelError("the connection ended before UCX had begun"); }

  const Clock::time_point deadline_;
  HostConnection connection_;
  std::unique_ptr<Lanes> lanes_;
  std::string got_;
  bool is_greeted_ = false, has_said_ = false;
};

class UcxListener final : public KvListener {
 public:
  UcxListener(const HostAddress& address, const HostSecret& secret) : listener_(address, secret) {}

  std::string address() const override { return "ucx://" + listener_.address().str(); }

  std::unique_ptr<KvChannel> accept(KvDeadline deadline) override {
    do {
      if (auto channel = step()) return channel;
      const milliseconds wait = left_until(deadline);
      auto connection = listener_.accept(meetings_.empty() ? wait : std::min(wait, kStep));
      if (connection && connection->note == note_of_ucx()) meet(std::move(*connection));
    } while (!is_closed_ && !is_over(deadline));
    return nullptr;
  }

  void close() noexcept override {
    is_closed_ = true;  // first: whoever is woken looks at it
    listener_.close();
  }

 private:
  void meet(HostConnection connection) try {
    if (meetings_.size() == kMostMeetings) meetings_.pop_front();
    meetings_.push_back(std::make_unique<Meeting>(std::move(connection)));
  } catch (const Error&) {
    // It has gone, or there is no memory for so many: who comes is refused.
  }
  // The first channel that has begun. Those that never will go.
  std::unique_ptr<KvChannel> step() {
    std::unique_ptr<KvChannel> channel;
    std::erase_if(meetings_, [&](const std::unique_ptr<Meeting>& one) {
      if (channel) return false;
      try {
        if (!one->step()) return one->is_late();
        channel = one->channel();
      } catch (const Error&) {
      }
      return true;
    });
    return channel;
  }

  HostListener listener_;
  std::deque<std::unique_ptr<Meeting>> meetings_;  // the oldest first
  std::atomic<bool> is_closed_{false};
};

}  // namespace

std::unique_ptr<KvListener> listen_by_ucx(std::string_view place, const HostSecret& secret) {
  const HostAddress address = parse_host_place(place, "ucx://", 0);
  expect_secret_for(address.host, secret, "ucx://");
  try {  // now, and not when somebody comes, who could not be told why
    UcxWorker{reach_of(address)};
  } catch (const Error& error) {
    fail("ucx://{}: {}", place, error.what());
  }
  return std::make_unique<UcxListener>(address, secret);
}

std::unique_ptr<KvChannel> connect_by_ucx(std::string_view place, KvDeadline deadline,
                                          const HostSecret& secret, KvListening listening) try {
  const HostAddress address = parse_host_place(place, "ucx://", 1);
  Meeting meeting(connect_to_host(address, secret, left_until(deadline),
                                  {.waits_for_listener = listening == KvListening::may_begin},
                                  note_of_ucx()));
  while (!meeting.step()) {
    if (is_over(deadline)) throw KvChannelError("who listens there has not begun in time");
    std::this_thread::sleep_for(kStep);
  }
  return meeting.channel();
} catch (const KvChannelError& error) {
  fail("ucx://{}: {}", place, error.what());
}

}  // namespace ladder
#endif

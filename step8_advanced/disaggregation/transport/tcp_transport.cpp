// tcp://HOST:PORT?streams=N: connections as hosts have among each other (step7_parallel/hosts/host_connections.h), whose ends
// have proved to each other that they know the secret before the first message. A channel has one of them or several, each of
// which is proved by itself and says in its note which channel it belongs to.
//
// The kernel's buffers are left to grow by themselves (to net.ipv4.tcp_rmem and tcp_wmem, MiBs): a size that is set here is
// bounded by net.core.rmem_max, 208 KiB on most machines, and is never more than that from then on.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <charconv>
#include <cstring>
#include <deque>
#include <future>
#include <optional>

#include "step7_parallel/hosts/host_connections.h"
#include "step8_advanced/disaggregation/transport/kv_deadline.h"
#include "step8_advanced/disaggregation/transport/stream_channel.h"
#include "step8_advanced/disaggregation/transport/tcp_streams.h"
#include "step8_advanced/disaggregation/transport/transport_rows.h"

namespace ladder {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostStreams = 16;
constexpr size_t kMostIncomplete = 64;  // channels at once; of more the oldest is dropped
constexpr std::chrono::seconds kCompletion{30};

// A connection's note. The channel's number is drawn by its connector and is long enough that nobody guesses it: whoever does
// not know it cannot put a connection of his own among another's.
struct StreamNote {
  std::array<char, 6> magic = {'L', 'D', 'K', 'V', 'T', '1'};
  uint8_t num_streams = 1, index = 0;
  std::array<unsigned char, 24> channel{};

  bool is_one() const {
    return magic == StreamNote().magic && num_streams >= 1 && num_streams <= kMostStreams &&
           index < num_streams;
  }
};
static_assert(sizeof(StreamNote) == sizeof(ConnectionNote), "no gaps");

std::unique_ptr<KvChannel> channel_over(std::vector<HostConnection> connections) {
  return std::make_unique<StreamChannel>(std::make_unique<TcpStreams>(std::move(connections)));
}

std::string options_text(int num_streams) {
  return num_streams == 1 ? "" : fmt::format("?streams={}", num_streams);
}

// The channels of which some connections are still to come.
class IncompleteChannels {
 public:
  // The connections of a channel that this one completes, in order. Who says what cannot be, comes a second time, or comes before
  // the first of its channel, is dropped.
  std::optional<std::vector<HostConnection>> add(HostConnection connection) {
    StreamNote note;
    std::memcpy(&note, connection.note.data(), sizeof note);
    if (!note.is_one()) return {};
    std::vector<HostConnection> whole;
    if (note.num_streams == 1) {
      whole.push_back(std::move(connection));
      return whole;
    }
    const auto is_its = [&](const Incomplete& one) { return one.channel == note.channel; };
    auto place = std::ranges::find_if(channels_, is_its);
    if (place == channels_.end()) {
      if (note.index != 0) return {};
      if (channels_.size() == kMostIncomplete) channels_.pop_front();
      channels_.push_back({note.channel, std::vector<std::optional<HostConnection>>(note.num_streams),
                           Clock::now() + kCompletion});
      place = std::prev(channels_.end());
    }
    if (place->streams.size() != note.num_streams || place->streams[note.index]) return {};
    place->streams[note.index] = std::move(connection);
    if (!std::ranges::all_of(place->streams, [](const auto& stream) { return stream.has_value(); }))
      return {};
    for (auto& stream : place->streams) whole.push_back(std::move(*stream));
    channels_.erase(place);
    return whole;
  }

  // Those that were not completed in time go. Returns when to call it next, no later than `deadline`.
  KvDeadline drop_late(KvDeadline deadline) {
    const auto now = Clock::now();
    std::erase_if(channels_, [&](const Incomplete& one) { return now >= one.deadline; });
    for (const Incomplete& one : channels_) deadline = std::min<KvDeadline>(deadline, one.deadline);
    return deadline;
  }

 private:
  struct Incomplete {
    std::array<unsigned char, 24> channel;
    std::vector<std::optional<HostConnection>> streams;
    Clock::time_point deadline;
  };
  std::deque<Incomplete> channels_;  // the oldest first
};

class TcpListener final : public KvListener {
 public:
  TcpListener(const HostAddress& address, int num_streams, const HostSecret& secret)
      : num_streams_(num_streams), listener_(address, secret) {}

  std::string address() const override {
    return "tcp://" + listener_.address().str() + options_text(num_streams_);
  }

  std::unique_ptr<KvChannel> accept(KvDeadline deadline) override {
    do {
      const KvDeadline until = incomplete_.drop_late(deadline);
      std::optional<HostConnection> connection = listener_.accept(left_until(until));
      if (!connection) continue;
      if (auto whole = incomplete_.add(std::move(*connection))) return channel_over(std::move(*whole));
    } while (!is_closed_ && !is_over(deadline));
    return nullptr;
  }

  void close() noexcept override {
    is_closed_ = true;  // first: whoever is woken looks at it
    listener_.close();
  }

 private:
  const int num_streams_;  // that connectors are told to come with
  HostListener listener_;
  IncompleteChannels incomplete_;
  std::atomic<bool> is_closed_{false};
};

struct TcpPlace {
  HostAddress address;
  int num_streams = 1;
};

TcpPlace parse_place(std::string_view place, int least_port) {
  const size_t question = std::min(place.find('?'), place.size());
  const std::string_view where = place.substr(0, question), options = place.substr(question);
  TcpPlace parsed{parse_host_place(where, "tcp://", least_port)};
  if (options.empty()) return parsed;
  constexpr std::string_view kStreams = "?streams=";
  const char* const end = options.data() + options.size();
  int& number = parsed.num_streams;
  bool is_right = options.starts_with(kStreams);
  if (is_right) {
    const auto [stop, error] = std::from_chars(options.data() + kStreams.size(), end, number);
    is_right = error == std::errc() && stop == end && number >= 1 && number <= kMostStreams;
  }
  LADDER_CHECK(is_right, "tcp://{}: expected nothing behind the port, or ?streams=1 to {}", place,
               kMostStreams);
  return parsed;
}

}  // namespace

std::unique_ptr<KvListener> listen_by_tcp(std::string_view place, const HostSecret& secret) {
  const TcpPlace parsed = parse_place(place, 0);
  expect_secret_for(parsed.address.host, secret, "tcp://");
  return std::make_unique<TcpListener>(parsed.address, parsed.num_streams, secret);
}

std::unique_ptr<KvChannel> connect_by_tcp(std::string_view place, KvDeadline deadline,
                                          const HostSecret& secret, KvListening listening) {
  const TcpPlace parsed = parse_place(place, 1);
  const Nonce drawn = draw_nonce();
  StreamNote note;
  note.num_streams = static_cast<uint8_t>(parsed.num_streams);
  std::copy_n(drawn.begin(), note.channel.size(), note.channel.begin());
  const auto connect = [&](StreamNote of_stream) {
    return connect_to_host(parsed.address, secret, left_until(deadline),
                           {.waits_for_listener = listening == KvListening::may_begin},
                           std::bit_cast<ConnectionNote>(of_stream));
  };
  // The first begins the channel over there; the others come at once, so that a slow link delays them all only once.
  std::vector<HostConnection> connections;
  connections.push_back(connect(note));
  std::vector<std::future<HostConnection>> others;
  for (++note.index; note.index < note.num_streams; ++note.index)
    others.push_back(std::async(std::launch::async, connect, note));
  for (std::future<HostConnection>& other : others) connections.push_back(other.get());
  return channel_over(std::move(connections));
}

}  // namespace ladder

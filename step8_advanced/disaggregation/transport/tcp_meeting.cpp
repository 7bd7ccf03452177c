#include "step8_advanced/disaggregation/transport/tcp_meeting.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <future>

#include "step8_advanced/disaggregation/transport/kv_deadline.h"

namespace ladder {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostIncomplete = 64;  // channels at once; of more the oldest is dropped
constexpr std::chrono::seconds kCompletion{30};

// A connection's note. The channel's number is drawn by its connector and is long enough that nobody guesses it: whoever does
// not know it cannot put a connection of his own among another's.
struct StreamNote {
  StreamMagic magic{};
  uint8_t num_streams = 1, index = 0;
  std::array<unsigned char, 24> channel{};

  bool is_one(const StreamMagic& expected) const {
    return magic == expected && num_streams >= 1 && num_streams <= kMostStreams && index < num_streams;
  }
};
static_assert(sizeof(StreamNote) == sizeof(ConnectionNote), "no gaps");

}  // namespace

std::optional<std::vector<HostConnection>> StreamListener::accept(KvDeadline deadline) {
  do {
    const KvDeadline until = drop_late(deadline);
    std::optional<HostConnection> connection = listener_.accept(left_until(until));
    if (!connection) continue;
    if (auto whole = add(std::move(*connection))) return whole;
  } while (!is_closed_ && !is_over(deadline));
  return std::nullopt;
}

void StreamListener::close() noexcept {
  is_closed_ = true;  // first: whoever is woken looks at it
  listener_.close();
}

// The connections of a channel that this one completes, in order. Who says what cannot be, comes a second time, or comes before
// the first of its channel, is dropped.
std::optional<std::vector<HostConnection>> StreamListener::add(HostConnection connection) {
  StreamNote note;
  std::memcpy(&note, connection.note.data(), sizeof note);
  if (!note.is_one(magic_)) return {};
  std::vector<HostConnection> whole;
  if (note.num_streams == 1) {
    whole.push_back(std::move(connection));
    return whole;
  }
  const auto is_its = [&](const Incomplete& one) { return one.channel == note.channel; };
  auto place = std::ranges::find_if(incomplete_, is_its);
  if (place == incomplete_.end()) {
    if (note.index != 0) return {};
    if (incomplete_.size() == kMostIncomplete) incomplete_.pop_front();
    incomplete_.push_back({note.channel, std::vector<std::optional<HostConnection>>(note.num_streams),
                           Clock::now() + kCompletion});
    place = std::prev(incomplete_.end());
  }
  if (place->streams.size() != note.num_streams || place->streams[note.index]) return {};
  place->streams[note.index] = std::move(connection);
  if (!std::ranges::all_of(place->streams, [](const auto& stream) { return stream.has_value(); })) return {};
  for (auto& stream : place->streams) whole.push_back(std::move(*stream));
  incomplete_.erase(place);
  return whole;
}

// Those that were not completed in time go. Returns when to call it next, no later than `deadline`.
KvDeadline StreamListener::drop_late(KvDeadline deadline) {
  const auto now = Clock::now();
  std::erase_if(incomplete_, [&](const Incomplete& one) { return now >= one.deadline; });
  for (const Incomplete& one : incomplete_) deadline = std::min<KvDeadline>(deadline, one.deadline);
  return deadline;
}

std::vector<HostConnection> connect_streams(const StreamMagic& magic, const HostAddress& address,
                                            int num_streams, KvDeadline deadline, const HostSecret& secret,
                                            KvListening listening) {
  const Nonce drawn = draw_nonce();
  StreamNote note;
  note.magic = magic;
  note.num_streams = static_cast<uint8_t>(num_streams);
  std::copy_n(drawn.begin(), note.channel.size(), note.channel.begin());
  const auto connect = [&](StreamNote of_stream) {
    return connect_to_host(address, secret, left_until(deadline),
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
  return connections;
}

}  // namespace ladder

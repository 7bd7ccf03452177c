#pragma once
// Where channels between machines begin: at a listener's address come connections as hosts have among each other
// (step7_parallel/hosts/host_connections.h), whose ends have proved to each other that they know the secret before the first
// message. A channel has one of them or several, each of which is proved by itself and says in its note which channel it
// belongs to. Internal to this folder.
#include <array>
#include <atomic>
#include <deque>
#include <optional>
#include <vector>

#include "step7_parallel/hosts/host_connections.h"
#include "step8_advanced/disaggregation/transport/kv_channel.h"

namespace ladder {

inline constexpr int kMostStreams = 16;

// What connectors of a transport say first, so that those of another are none of its own.
using StreamMagic = std::array<char, 6>;

class StreamListener {
 public:
  // Error: nothing can listen there.
  StreamListener(const StreamMagic& magic, const HostAddress& address, const HostSecret& secret)
      : magic_(magic), listener_(address, secret) {}

  const HostAddress& address() const { return listener_.address(); }
  // The connections of the next channel that is complete, in order; how many there are says its connector. As KvListener.
  std::optional<std::vector<HostConnection>> accept(KvDeadline deadline);
  void close() noexcept;

 private:
  struct Incomplete {
    std::array<unsigned char, 24> channel;
    std::vector<std::optional<HostConnection>> streams;
    KvDeadline deadline;
  };
  std::optional<std::vector<HostConnection>> add(HostConnection connection);
  KvDeadline drop_late(KvDeadline deadline);

  const StreamMagic magic_;
  HostListener listener_;
  std::deque<Incomplete>
      incomplete_;  // channels of which some connections are still to come, the oldest first
  std::atomic<bool> is_closed_{false};
};

// Error as KvTransport::connect.
std::vector<HostConnection> connect_streams(const StreamMagic& magic, const HostAddress& address,
                                            int num_streams, KvDeadline deadline, const HostSecret& secret,
                                            KvListening listening);

}  // namespace ladder

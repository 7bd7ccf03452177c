// tcp://HOST:PORT?streams=N: messages in order over one connection or several (tcp_meeting.h, tcp_streams.h).
//
// The kernel's buffers are left to grow by themselves (to net.ipv4.tcp_rmem and tcp_wmem, MiBs): a size that is set here is
// bounded by net.core.rmem_max, 208 KiB on most machines, and is never more than that from then on.
#include <algorithm>
#include <charconv>

#include "step8_advanced/disaggregation/transport/stream_channel.h"
#include "step8_advanced/disaggregation/transport/tcp_meeting.h"
#include "step8_advanced/disaggregation/transport/tcp_streams.h"
#include "step8_advanced/disaggregation/transport/transport_rows.h"

namespace ladder {

namespace {

constexpr StreamMagic kMagic = {'L', 'D', 'K', 'V', 'T', '1'};

std::unique_ptr<KvChannel> channel_over(std::vector<HostConnection> connections) {
  return std::make_unique<StreamChannel>(std::make_unique<TcpStreams>(std::move(connections)));
}

std::string options_text(int num_streams) {
  return num_streams == 1 ? "" : fmt::format("?streams={}", num_streams);
}

class TcpListener final : public KvListener {
 public:
  TcpListener(const HostAddress& address, int num_streams, const HostSecret& secret)
      : num_streams_(num_streams), listener_(kMagic, address, secret) {}

  std::string address() const override {
    return "tcp://" + listener_.address().str() + options_text(num_streams_);
  }
  std::unique_ptr<KvChannel> accept(KvDeadline deadline) override {
    auto connections = listener_.accept(deadline);
    return connections ? channel_over(std::move(*connections)) : nullptr;
  }
  void close() noexcept override { listener_.close(); }

 private:
  const int num_streams_;  // that connectors are told to come with
  StreamListener listener_;
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
  return channel_over(
      connect_streams(kMagic, parsed.address, parsed.num_streams, deadline, secret, listening));
}

}  // namespace ladder

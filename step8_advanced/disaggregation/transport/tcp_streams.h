#pragma once
// Bytes in order over one or several connections. Internal to this folder.
//
//   byte k of all that was ever written goes over connection (k / stripe) % N:
//
//     connection 0   | 0  .. 127 KiB |                 | 256 .. 383 |
//     connection 1                   | 128 .. 255 KiB  |            | 384 .. 511 |
//
// So both ends know of every byte where it comes, nothing is said about it on the way, and each connection's bytes land
// straight in the reader's memory. Why several: what one connection carries is bounded by its window divided by the time of a
// round trip, and by what a loss costs it; N of them carry N times as much, until the link or the processor is full. One
// thread serves them all, so they do not copy faster than one.
#include <string>
#include <vector>

#include "step7_parallel/hosts/host_connections.h"
#include "step8_advanced/disaggregation/transport/stream_channel.h"

struct iovec;

namespace ladder {

class TcpStreams final : public ByteStream {
 public:
  static constexpr size_t kStripe = size_t{1} << 17;

  // In the order of both ends. The end of one of them is the end of all.
  explicit TcpStreams(std::vector<HostConnection> connections);

  void write(Pieces pieces, KvDeadline deadline) override;
  void read(std::span<std::byte> bytes, KvDeadline deadline) override;
  void close() noexcept override;
  // By the thread that reads, of one connection: something is there to be read.
  bool has_bytes() const;

 private:
  using Parts = std::vector<std::vector<iovec>>;  // of each connection, in its order
  // Memory for the bytes from `position` on, to where they go.
  void deal_out(std::span<const std::byte> bytes, uint64_t& position, Parts& parts) const;
  // some(socket, parts of it, how many) moves some of a connection's bytes and returns how many, or sets errno.
  template <class Some>
  void move_all(Parts& parts, short events, KvDeadline deadline, std::string_view what, Some some);

  const std::vector<HostConnection> connections_;
  uint64_t written_ = 0, read_ = 0;
};

}  // namespace ladder

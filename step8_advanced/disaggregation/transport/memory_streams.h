#pragma once
// Streams of bytes through memory without a name, between processes of this machine and user: two rings each, one for each way,
// whose descriptors the listener sends over an abstract unix socket. Nothing of it is in any folder, and all of it goes with the
// last process that has it, however that ends. Internal to this folder.
//
// Nothing more is ever said over the socket: it tells that the other process is gone (its end hangs up), which whoever waits
// looks at twenty times a second.
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "step8_advanced/disaggregation/transport/kv_ring.h"
#include "step8_advanced/disaggregation/transport/stream_channel.h"

namespace ladder {

// Whether the other end of a socket over which nothing is said is gone.
bool has_hung_up(const FileDescriptor& socket);

class RingStream final : public ByteStream {
 public:
  RingStream(std::shared_ptr<const FileDescriptor> socket, KvRing out, KvRing in)
      : socket_(std::move(socket)), out_(std::move(out)), in_(std::move(in)) {}

  void write(Pieces pieces, KvDeadline deadline) override;
  void read(std::span<std::byte> bytes, KvDeadline deadline) override;
  void close() noexcept override;
  // By the thread that reads: something is there to be read.
  bool has_bytes() const { return in_.has_bytes(); }

 private:
  const std::shared_ptr<const FileDescriptor> socket_;
  KvRing out_, in_;
};

inline constexpr int kMaxMemoryStreams = 2;

struct MemoryStreams {
  std::shared_ptr<const FileDescriptor> socket;
  std::vector<std::unique_ptr<RingStream>> streams;
};

class MemoryStreamListener {
 public:
  // `scheme`: that of the address, "shm"; names of one are none of another. So many streams for everybody who comes. Error: the
  // name is none, or taken.
  MemoryStreamListener(std::string_view scheme, std::string_view name, int num_streams, size_t ring_bytes);

  const std::string& address() const { return address_; }
  std::optional<MemoryStreams> accept(KvDeadline deadline);  // as KvListener
  void close() noexcept;

 private:
  std::optional<MemoryStreams> greet(FileDescriptor socket) const;

  const std::string address_;
  const int num_streams_;
  const size_t ring_bytes_;
  const FileDescriptor socket_;
  std::atomic<bool> is_closed_{false};
};

// Error as KvTransport::connect.
MemoryStreams connect_memory_streams(std::string_view scheme, std::string_view name, int num_streams,
                                     KvDeadline deadline, KvListening listening);

}  // namespace ladder

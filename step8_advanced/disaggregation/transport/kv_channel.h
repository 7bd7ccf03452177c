#pragma once
// How bytes travel between two engines: messages in order, both ways, over one of several transports, slowest first in the
// table. A message has a head (small: what it is) and a body (large: keys and values), which lands in the memory that
// its reader gives.
//
// Each end is used by one thread at a time. A wait has a deadline. A channel that has failed stays failed.
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "step1_layers/core/error.h"

namespace ladder {

// The other end is gone, does not answer in time, or has sent what is no message. The channel is of no more use.
class KvChannelError : public Error {
 public:
  using Error::Error;
};

using KvDeadline = std::chrono::steady_clock::time_point;

inline constexpr size_t kMaxKvMessageHead = size_t{1} << 16;
inline constexpr size_t kMaxKvMessageBody = size_t{1} << 30;

struct KvMessageHead {
  std::vector<std::byte> head;
  size_t body_size = 0;  // bytes that receive_body() must take before the next message
};

class KvChannel {
 public:
  virtual ~KvChannel() = default;
  virtual void send(std::span<const std::byte> head, std::span<const std::byte> body,
                    KvDeadline deadline) = 0;
  virtual KvMessageHead receive_head(KvDeadline deadline) = 0;
  virtual void receive_body(std::span<std::byte> body, KvDeadline deadline) = 0;  // exactly body_size bytes
  // From any thread: whoever waits in one of the above gets a KvChannelError.
  virtual void close() noexcept = 0;
};

class KvListener {
 public:
  virtual ~KvListener() = default;
  virtual std::string address() const = 0;  // what a reader connects to; with the port that was given
  // null: nobody came until the deadline, or it was closed.
  virtual std::unique_ptr<KvChannel> accept(KvDeadline deadline) = 0;
  virtual void close() noexcept = 0;  // from any thread
};

struct KvTransport {
  std::string_view name;  // of an address: "file", "shm", "tcp"
  std::string_view idea;
  // `place` is what follows "name://". Error, naming it: a place that is none, a port in use, a folder that cannot be written.
  std::unique_ptr<KvListener> (*listen)(std::string_view place) = nullptr;
  // Error: nobody is there until the deadline.
  std::unique_ptr<KvChannel> (*connect)(std::string_view place, KvDeadline deadline) = nullptr;
};

// Slowest first.
std::span<const KvTransport> kv_transports();
// Of an address, "tcp://127.0.0.1:0". Error, naming the transports that there are: none of this name, no "://".
std::unique_ptr<KvListener> listen_for_kv(std::string_view address);
std::unique_ptr<KvChannel> connect_for_kv(std::string_view address, KvDeadline deadline);

}  // namespace ladder

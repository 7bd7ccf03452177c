#pragma once
// How bytes travel between two engines: messages in order, both ways, over one of several transports, slowest first in the
// table. A message has a head (small: what it is) and a body (large: keys and values), which lands in the memory that
// its reader gives.
//
// One thread may send while another receives; no more of either. A wait has a deadline, and a writer waits for its reader: no
// transport takes in more than a bounded part of what was not read. A channel that has failed stays failed.
//
// A message comes whole and as it was sent, or there is an error. Whether it is what its sender should have sent, and whether
// memory kept it, the channel does not know: checksums of blocks are its user's.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "step1_layers/core/error.h"
#include "step7_parallel/hosts/host_secret.h"
#include "step8_advanced/disaggregation/transport/kv_body.h"

namespace ladder {

// The other end is gone, does not answer in time, or has sent what is no message; or this end was closed. The channel is of no
// more use.
class KvChannelError : public Error {
 public:
  using Error::Error;
};

using KvDeadline = std::chrono::steady_clock::time_point;

inline constexpr size_t kMaxKvMessageHead = size_t{1} << 16;
inline constexpr size_t kMaxKvMessageBody = size_t{1} << 30;

// About so large a body is at best: small enough to be under way while the next one is filled, large enough to hide what a
// message costs.
inline constexpr size_t kKvBodyBytes = size_t{2} << 20;

// Ways between the ranks of two engines that a channel can tell apart: of 64 ranks here, each of which reads from one over there.
inline constexpr int kMostKvLanes = 64;

struct KvMessageHead {
  std::vector<std::byte> head;
  size_t body_size =
      0;  // bytes that receive_body() must take before the next message; 0: it need not be called
};

// What a body is on the way: as it is, or shortened by zstd (kv_compression.h). Of numbers of 2 or 4 bytes first bytes and last
// bytes are told apart: in keys and values the last ones are noise, and the first ones are not.
enum class KvBodyForm : uint32_t { plain = 0, zstd = 1, zstd_of_2_bytes = 2, zstd_of_4_bytes = 4 };

struct KvBodyCounts {
  int64_t num_bytes = 0;         // of bodies that were to be shortened
  int64_t num_packed_bytes = 0;  // that they took on the way
  double pack_seconds = 0.0;

  KvBodyCounts& operator+=(const KvBodyCounts& other) {
    num_bytes += other.num_bytes;
    num_packed_bytes += other.num_packed_bytes;
    pack_seconds += other.pack_seconds;
    return *this;
  }
};

class KvChannel {
 public:
  // Closes it. What was sent before can still be received at the other end, unless that end sends to this one meanwhile (a
  // TCP connection is then reset): who needs to know waits for an answer.
  virtual ~KvChannel() = default;
  virtual void send(std::span<const std::byte> head, std::span<const std::byte> body,
                    KvDeadline deadline) = 0;
  virtual KvMessageHead receive_head(KvDeadline deadline) = 0;
  virtual void receive_body(std::span<std::byte> body, KvDeadline deadline) = 0;  // exactly body_size bytes
  // From any thread: whoever waits in one of the above or below gets a KvChannelError.
  virtual void close() noexcept = 0;

  // Bodies in memory of the channel's, for keys and values that lie on `device`. Where that is a GPU from which bodies travel
  // they are there too, else the host's: pinned memory for a GPU.

  virtual size_t body_bytes() const { return kKvBodyBytes; }  // what the channel would like
  // Of the thread that sends: `size` bytes for the next body, until it is sent. Waits until there is room. Where ends have several
  // GPUs, bodies of one lane (0 to kMostKvLanes - 1) all go from one of them to one.
  virtual KvBody room_for(size_t size, Device device, KvDeadline deadline, int lane = 0);
  // `body`: the first part of what room_for() gave, filled: what fills it has ended.
  virtual void send_body(std::span<const std::byte> head, const KvBody& body, KvDeadline deadline);
  // Of the thread that receives, in place of receive_body(): the body of the message whose head came last, until the next
  // receive_head(). `device`: where it is going, the same in all calls of a lane; the channel may begin with what comes next.
  virtual KvBody take_body(size_t size, Device device, KvDeadline deadline);

  // By the thread that sends. Bodies that are sent from now on travel in this form, where it is shorter. The other end need not
  // be told: each message says what it is.
  void send_bodies_as(KvBodyForm form) { sent_form_ = form; }
  // Of the bodies sent since the last call.
  KvBodyCounts take_sent_counts() { return std::exchange(sent_counts_, {}); }

 protected:
  KvBodyForm sent_form_ = KvBodyForm::plain;
  KvBodyCounts sent_counts_;

 private:
  // Of the host, near a device.
  struct Room {
    std::shared_ptr<void> memory;
    size_t size = 0;
    DeviceType near_type = DeviceType::cpu;

    KvBody of(size_t size, Device near);
  };
  Room to_send_, taken_;
};

class KvListener {
 public:
  virtual ~KvListener() = default;
  virtual std::string address() const = 0;  // what a reader connects to; with the port that was given
  // By one thread at a time. null: nobody came until the deadline, or it was closed. Whoever comes without the secret, or with
  // nonsense, is dropped.
  virtual std::unique_ptr<KvChannel> accept(KvDeadline deadline) = 0;
  virtual void close() noexcept = 0;  // from any thread
};

// Where nobody listens somebody may begin to, until the deadline; or, where a listener has named the place, it is gone.
enum class KvListening : uint8_t { may_begin, has_begun };

struct KvTransport {
  std::string_view name;  // of an address: "file", "tcp", "ucx", "shm", "nccl", "cuda"
  std::string_view idea;
  // `place` is what follows "name://". Error, naming it: a place that is none, a port in use, a folder that cannot be written.
  std::unique_ptr<KvListener> (*listen)(std::string_view place, const HostSecret& secret) = nullptr;
  // Error: nobody is there until the deadline, or it has another secret; at once: nobody listens, and a listener has been there.
  std::unique_ptr<KvChannel> (*connect)(std::string_view place, KvDeadline deadline, const HostSecret& secret,
                                        KvListening listening) = nullptr;
};

// Slowest first.
std::span<const KvTransport> kv_transports();

// Of an address:
//   file://FOLDER          made if it is not there; who may write there may connect
//   tcp://HOST:PORT        port 0: one that is free; tcp://PORT is one of 127.0.0.1. Both ends prove that they know the same
//                          secret (host_secret.h), which may be empty on this machine alone. tcp://0.0.0.0:PORT listens at all
//                          of this machine's addresses, and is none to tell others. With ?streams=N, 1 to 16, who connects
//                          there comes with N connections for each channel.
//   ucx://HOST:PORT        as tcp://HOST:PORT, but bytes travel by what UCX chooses (ucx_transport.cpp says who may do what to it);
//                          where the build has UCX
//   shm://NAME             processes of this machine and user
//   nccl://HOST:PORT       as tcp://HOST:PORT; bodies on a GPU go by NCCL to the reader's, which is another one
//                          (nccl_transport_cuda.cpp says who may do what to it)
//   cuda://NAME            as shm://NAME; bodies on a GPU are copied from there to the reader's (gpu_transport_cuda.cpp)
// Error, naming the transports that there are: none of this name, no "://". The secret is that of the variable LADDER_SECRET.
std::unique_ptr<KvListener> listen_for_kv(std::string_view address,
                                          const HostSecret& secret = read_host_secret({}));
std::unique_ptr<KvChannel> connect_for_kv(std::string_view address, KvDeadline deadline,
                                          const HostSecret& secret = read_host_secret({}),
                                          KvListening listening = KvListening::may_begin);

}  // namespace ladder

// nccl://HOST:PORT: bodies from one GPU to another by NCCL's send and recv (gpu_channel.h): within a machine over NVLink, between
// machines over what NCCL finds, RDMA or TCP. Heads, and bodies of the host, go over a connection as with tcp://, whose ends have
// proved the secret to each other.
//
//   connection 1     messages, both ways
//   connection 2     nothing: its end says that the other end has let go, or is dead
//   NCCL             a group of two for each lane and direction in which bodies go: the sender is rank 0, the reader rank 1
//
// The sender draws the group's id and tells it with each body, over the connection that is proved. A group is made when both ends
// know their GPUs: the sender with the first body that it fills, the reader with the first that he takes. NCCL itself opens ports
// of its own for that (NCCL_SOCKET_IFNAME says where) and believes who knows the id; so between machines this row is for a network
// of one's own, like ucx://.
//
// send and recv meet: a kernel on each GPU waits for the other's, so a sender would wait for its reader's first recv before it could do
// anything else. Therefore a thread of the sender's own makes the group and sends what was filled, in order; when a body has left,
// its slot is free. The reader begins a recv for each head that has come.
//
// Nobody waits for a dead peer: groups are nonblocking (nccl_pair.h), whoever waits looks at connection 2, and a group that is
// given up ends its kernels. A sender that is closed lives on until its reader has let go, so that what was sent before comes
// (ParkedSlots). Where a reader dies before it has made the group, NCCL keeps a thread and a socket of the meeting.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <optional>
#include <thread>

#include "step1_layers/core/device_cuda.h"
#include "step7_parallel/communicators/gpu/nccl_pair.h"
#include "step8_advanced/disaggregation/transport/gpu_channel.h"
#include "step8_advanced/disaggregation/transport/kv_deadline.h"
#include "step8_advanced/disaggregation/transport/memory_streams.h"
#include "step8_advanced/disaggregation/transport/tcp_meeting.h"
#include "step8_advanced/disaggregation/transport/tcp_streams.h"
#include "step8_advanced/disaggregation/transport/transport_rows.h"

namespace ladder {

namespace {

using Clock = std::chrono::steady_clock;

constexpr StreamMagic kMagic = {'L', 'D', 'K', 'V', 'N', '1'};
constexpr int kNumStreams = 2;
constexpr std::chrono::milliseconds kLook{50};   // how long a dead peer goes unnoticed by who sleeps
constexpr std::chrono::seconds kLastWords{1};    // for what a sender has sent before it ended
constexpr std::chrono::microseconds kPause{50};  // between looks, of who has waited for long
constexpr int kLooksAtOnce = 2000;

using Lifeline = std::shared_ptr<const FileDescriptor>;
using GpuName = std::array<char, sizeof(cudaUUID_t)>;

struct NcclOffer {
  NcclId group{};
  GpuName gpu{};
};

GpuName gpu_name(Device device) {
  cudaDeviceProp properties{};
  LADDER_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index));
  GpuName name;
  std::copy_n(properties.uuid.bytes, name.size(), name.begin());
  return name;
}

// Who waits looks at once again for a while, and then with pauses.
class Looks {
 public:
  void rest() {
    if (++count_ < kLooksAtOnce)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(kPause);
  }

 private:
  int count_ = 0;
};

class Sender {
 public:
  Sender(Device device, Lifeline lifeline)
      : lifeline_(std::move(lifeline)),
        slots_(device),
        offer_{make_nccl_id(), gpu_name(device)},
        thread_([this] { run(); }) {}
  ~Sender() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Sender(const Sender&) = delete;

  Device device() const { return slots_.device(); }
  const NcclOffer& offer() const { return offer_; }

  KvBody slot_to_fill(int64_t number, KvDeadline deadline) {
    std::unique_lock lock(mutex_);
    const auto has_room = [&] { return number - num_gone_ < kGpuSlots; };
    changed_.wait_until(lock, deadline, [&] { return has_room() || is_closed_ || !error_.empty(); });
    if (!error_.empty()) throw KvChannelError(error_);
    if (is_closed_) throw KvChannelError("the channel was closed");
    if (!has_room()) throw KvChannelError("the reader takes no more bodies, and the time is over");
    return slots_.slot(number);
  }
  void send(int64_t number, size_t size) {
    {
      const std::lock_guard lock(mutex_);
      sizes_[static_cast<size_t>(number % kGpuSlots)] = size;
      num_filled_ = number + 1;
    }
    changed_.notify_all();
  }
  // What was sent goes on.
  void close() noexcept {
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
    }
    changed_.notify_all();
  }

 private:
  void run() try {
    const Device device = slots_.device();
    SlotStream stream(device);
    const std::unique_ptr<NcclPair> pair = begin_nccl_pair(offer_.group, 0, device.index);
    const auto wait_until = [&](auto is_so) {
      for (Looks looks; !is_so(); looks.rest()) expect_reader();
    };
    wait_until([&] { return pair->is_ready(); });
    int64_t num_begun = 0, num_gone = 0;
    while (true) {
      if (const size_t size = size_of(num_begun, num_begun == num_gone); size > 0) {
        pair->send(slots_.slot(num_begun).data, size, stream.get());
        wait_until([&] { return pair->is_ready(); });
        stream.record(num_begun++);
      } else if (num_gone < num_begun) {
        wait_until([&] { return stream.is_past(num_gone) || is_filled(num_begun); });
        if (!stream.is_past(num_gone)) continue;
        {
          const std::lock_guard lock(mutex_);
          num_gone_ = ++num_gone;
        }
        changed_.notify_all();
      } else {
        expect_reader();
      }
    }
  } catch (const std::exception& error) {
    {
      const std::lock_guard lock(mutex_);
      error_ = error.what();
    }
    changed_.notify_all();
  }

  void expect_reader() {
    const std::lock_guard lock(mutex_);
    if (is_stopping_) throw KvChannelError("the channel was closed");
    if (has_hung_up(*lifeline_)) throw KvChannelError("the reader of bodies on a GPU is gone");
  }
  bool is_filled(int64_t number) {
    const std::lock_guard lock(mutex_);
    return num_filled_ > number;
  }
  // 0: it is not filled; where there is nothing else to do it is waited for, a little.
  size_t size_of(int64_t number, bool waits) {
    std::unique_lock lock(mutex_);
    if (waits) changed_.wait_for(lock, kLook, [&] { return is_stopping_ || num_filled_ > number; });
    return num_filled_ > number ? sizes_[static_cast<size_t>(number % kGpuSlots)] : 0;
  }

  const Lifeline lifeline_;
  const GpuSlots slots_;
  const NcclOffer offer_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_stopping_ = false, is_closed_ = false;
  int64_t num_filled_ = 0, num_gone_ = 0;  // bodies, ever
  std::array<size_t, kGpuSlots> sizes_{};
  std::string error_;
  std::thread thread_;
};

// An error of NCCL's is one of the channel's: the other end may be at fault.
template <class Work>
auto as_channel_error(Work work) {
  try {
    return work();
  } catch (const KvChannelError&) {
    throw;
  } catch (const Error& error) {
    throw KvChannelError(error.what());
  }
}

class Receiver final : public GpuLanding {
 public:
  Receiver(const NcclOffer& offer, Device device, Lifeline lifeline, const std::atomic<bool>& is_closed,
           KvDeadline deadline)
      : GpuLanding(device), lifeline_(std::move(lifeline)), is_closed_(is_closed), stream_(device) {
    LADDER_CHECK(
        gpu_name(device) != offer.gpu,
        "nccl://: both ends are on one GPU, {} here, which can be one rank of a group only: expected two "
        "GPUs, or cuda://",
        device_name(device));
    as_channel_error([&] {
      pair_ = begin_nccl_pair(offer.group, 1, device.index);
      wait_until_ready(deadline);
    });
  }

  bool has_come(int64_t number) override {
    if (stream_.is_past(number)) return true;
    expect_sender();
    as_channel_error([&] { pair_->is_ready(); });
    return false;
  }

 private:
  // Bodies come in the order in which they were sent.
  void begin_in(const KvBody& slot, int64_t mine, size_t /*source*/, const GpuBodyOffer& /*offer*/,
                int64_t /*number*/, KvDeadline deadline) override {
    as_channel_error([&] {
      pair_->recv(slot.data, slot.size, stream_.get());
      wait_until_ready(deadline);
    });
    stream_.record(mine);
  }
  void wait_until_ready(KvDeadline deadline) {
    for (Looks looks; !pair_->is_ready(); looks.rest()) {
      expect_sender();
      if (is_closed_) throw KvChannelError("the channel was closed");
      if (is_over(deadline))
        throw KvChannelError("the sender of a body on a GPU does not answer, and the time is over");
    }
  }
  void expect_sender() {
    if (!has_hung_up(*lifeline_)) return;
    if (!hung_up_at_) hung_up_at_ = Clock::now();
    if (Clock::now() - *hung_up_at_ > kLastWords)
      throw KvChannelError("the sender of bodies on a GPU is gone");
  }

  const Lifeline lifeline_;
  const std::atomic<bool>& is_closed_;
  std::optional<Clock::time_point> hung_up_at_;
  SlotStream stream_;
  std::unique_ptr<NcclPair> pair_;  // last: its kernels end first
};

class NcclWay final : public GpuBodyWay {
 public:
  NcclWay(Lifeline lifeline, std::shared_ptr<ParkedSlots> parked)
      : lifeline_(std::move(lifeline)), parked_(std::move(parked)) {}
  ~NcclWay() override {
    for (auto& receiver : receivers_) receiver.reset();  // first: then the other end may end its kernels,
    ::shutdown(lifeline_->number(), SHUT_WR);            // which this says
    for (auto& sender : senders_)
      if (sender != nullptr) parked_->park(std::move(sender), lifeline_);
  }

  size_t source_of(Device device, int lane) override {
    const auto source = static_cast<size_t>(lane);
    if (senders_[source] == nullptr) {
      auto sender = std::make_unique<Sender>(device, lifeline_);
      const std::lock_guard lock(mutex_);
      if (is_closed_) sender->close();
      senders_[source] = std::move(sender);
    }
    LADDER_CHECK(senders_[source]->device() == device,
                 "bodies on {} and on {}: expected those of a lane on one GPU",
                 device_name(senders_[source]->device()), device_name(device));
    return source;
  }
  KvBody slot_to_fill(size_t source, int64_t number, KvDeadline deadline) override {
    return senders_[source]->slot_to_fill(number, deadline);
  }
  GpuBodyOffer send(size_t source, int64_t number, size_t size) override {
    senders_[source]->send(number, size);
    return GpuBodyOffer(senders_[source]->offer());
  }

  GpuLanding& landing_of(const GpuBodyOffer& offer, Device device, int lane, KvDeadline deadline) override {
    std::unique_ptr<Receiver>& receiver = receivers_[static_cast<size_t>(lane)];
    receiver = std::make_unique<Receiver>(offer.as<NcclOffer>(), device, lifeline_, is_closed_, deadline);
    return *receiver;
  }
  void give_back(KvDeadline /*deadline*/) override {}  // the sender sees by itself that a body has left

  void close() noexcept override {
    is_closed_ = true;
    const std::lock_guard lock(mutex_);
    for (const auto& sender : senders_)
      if (sender != nullptr) sender->close();
  }

 private:
  const Lifeline lifeline_;
  const std::shared_ptr<ParkedSlots> parked_;
  std::atomic<bool> is_closed_{false};
  std::mutex mutex_;  // of who makes a sender, and who closes it
  // By lane.
  std::array<std::unique_ptr<Sender>, kMostGpuSources> senders_;
  std::array<std::unique_ptr<Receiver>, kMostKvLanes> receivers_;
};

std::unique_ptr<KvChannel> channel_over(std::vector<HostConnection> connections,
                                        std::shared_ptr<ParkedSlots> parked) {
  auto lifeline = std::make_shared<const FileDescriptor>(std::move(connections[1].socket));
  connections.pop_back();
  auto messages = std::make_unique<TcpStreams>(std::move(connections));
  const TcpStreams& stream = *messages;
  return std::make_unique<GpuChannel>(
      std::move(messages), [&stream] { return stream.has_bytes(); },
      std::make_unique<NcclWay>(std::move(lifeline), std::move(parked)));
}

class NcclListener final : public KvListener {
 public:
  NcclListener(const HostAddress& address, const HostSecret& secret) : listener_(kMagic, address, secret) {
    std::string reason;
    LADDER_CHECK(cuda_device_count(&reason) > 0, "{}: no GPU can be used: {}", NcclListener::address(),
                 reason);
    const std::string obstacle = nccl_obstacle();
    LADDER_CHECK(obstacle.empty(), "{}: {}", NcclListener::address(), obstacle);
  }

  std::string address() const override { return "nccl://" + listener_.address().str(); }
  std::unique_ptr<KvChannel> accept(KvDeadline deadline) override {
    do {
      parked_->sweep();
      auto connections = listener_.accept(deadline);
      if (connections && connections->size() == kNumStreams)
        return channel_over(std::move(*connections), parked_);
      if (!connections) return nullptr;
    } while (!is_over(deadline));
    return nullptr;
  }
  void close() noexcept override { listener_.close(); }

 private:
  StreamListener listener_;
  const std::shared_ptr<ParkedSlots> parked_ = std::make_shared<ParkedSlots>();
};

}  // namespace

std::unique_ptr<KvListener> listen_by_nccl(std::string_view place, const HostSecret& secret) {
  const HostAddress address = parse_host_place(place, "nccl://", 0);
  expect_secret_for(address.host, secret, "nccl://");
  return std::make_unique<NcclListener>(address, secret);
}

std::unique_ptr<KvChannel> connect_by_nccl(std::string_view place, KvDeadline deadline,
                                           const HostSecret& secret, KvListening listening) {
  return channel_over(connect_streams(kMagic, parse_host_place(place, "nccl://", 1), kNumStreams, deadline,
                                      secret, listening),
                      std::make_shared<ParkedSlots>());
}

}  // namespace ladder

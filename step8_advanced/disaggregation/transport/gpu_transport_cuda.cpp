// cuda://NAME: bodies from one GPU of this machine to another, or to the same one, without the host: the sender fills a slot of
// memory on its GPU, and the reader's copy engine fetches it from there. Heads, and bodies of the host, go through memory that both
// processes see, as shm:// has it; so does the number of a slot that was read.
//
//   sender                                     stream 1 --->                                reader
//     caches -- kernel --> | slot | slot | slot |   ===== copy engine =====>   | slot | slot | slot | -- kernel --> caches
//                                              <--- stream 2: slots to be filled again
//
// A sender that is ahead by all its slots waits: that is back-pressure. A reader that has taken a body looks for the next heads
// while it waits for that body to have come, and begins their copies behind it: so the copy engine has work while a body is
// checked and copied into blocks.
//
//   stream 1, each message     envelope as the head, the user's head as the body;
//                              a body of the host: a second message, with it as the body
//
// An end with several GPUs has slots on each. Which of the reader's GPUs a body goes to is known when the user takes it, and
// that of the next ones before: their lane says it, from its second body on.
//
// The sender's slots are opened by a handle of CUDA's, or by their address where both ends are threads of a process (a process
// cannot open its own handle). They are freed when the reader has let go of them, which he says with the end of his socket, as
// his death does (ParkedSlots). Where the sender dies, memory that is open here stays until it is closed here.
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <thread>

#include "step1_layers/core/device_cuda.h"
#include "step8_advanced/disaggregation/transport/gpu_slots.h"
#include "step8_advanced/disaggregation/transport/kv_deadline.h"
#include "step8_advanced/disaggregation/transport/memory_streams.h"
#include "step8_advanced/disaggregation/transport/transport_rows.h"

namespace ladder {

namespace {

constexpr int kNumStreams = 2;

constexpr int kMostGpus = 16;                  // that an end has slots on
constexpr int64_t kMostAhead = 2 * kGpuSlots;  // messages that have come, and wait for the user

struct Envelope {
  static constexpr uint64_t kMagic = 0x3255504744414c56;

  uint64_t magic = kMagic;
  uint64_t body_size = 0;
  uint64_t is_on_gpu = 0;
  // Of a body that is:
  uint64_t lane = 0;
  uint64_t source = 0;  // which of the sender's GPUs has it: they are counted as they are first used
  uint64_t slot = 0;    // there, counted for ever
  GpuSlotsHandle slots;
};
static_assert(std::is_trivially_copyable_v<Envelope>);

void set_device(Device device) {
  LADDER_CUDA_CHECK(cudaSetDevice(device.index));
}

// One of the reader's GPUs: copies from the sender's slots, on whatever GPUs they are, into slots of its own, in order.
class Landing {
 public:
  explicit Landing(Device device) : device_(device), mine_(device) {
    set_device(device_);
    LADDER_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    try {
      for (cudaEvent_t& event : has_come_)
        LADDER_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    } catch (...) {
      let_go();
      throw;
    }
  }
  ~Landing() { let_go(); }
  Landing(const Landing&) = delete;

  Device device() const { return device_; }
  bool has_room() const { return num_begun_ - num_left_ < kGpuSlots; }
  // The body in slot `slot` of the sender's GPU `source`: its number here, by which it is asked for.
  int64_t begin(size_t source, const GpuSlotsHandle& theirs, uint64_t slot, size_t size) {
    set_device(device_);
    const std::byte* const from =
        their_memory(source, theirs) + static_cast<size_t>(slot % kGpuSlots) * kGpuSlotBytes;
    LADDER_CUDA_CHECK(cudaMemcpyAsync(mine_.slot(num_begun_).data, from, size, cudaMemcpyDefault, stream_));
    LADDER_CUDA_CHECK(cudaEventRecord(event_of(num_begun_), stream_));
    return num_begun_++;
  }
  bool has_come(int64_t number) const {
    const cudaError_t status = cudaEventQuery(event_of(number));
    if (status == cudaErrorNotReady) return false;
    LADDER_CUDA_CHECK(status);
    return true;
  }
  KvBody body(int64_t number, size_t size) const { return mine_.slot(number).part(0, size); }
  void leave() { ++num_left_; }  // the user has done with the oldest one

 private:
  cudaEvent_t event_of(int64_t number) const { return has_come_[static_cast<size_t>(number % kGpuSlots)]; }

  const std::byte* their_memory(size_t source, const GpuSlotsHandle& theirs) {
    if (theirs_.size() <= source) theirs_.resize(source + 1);
    OpenedGpuMemory& opened = theirs_[source];
    if (opened.address == nullptr) {
      opened = open_gpu_memory(theirs.memory, device_.index, "the other end");
      expect_access(opened, theirs.pattern);
    }
    return static_cast<const std::byte*>(opened.address);
  }
  // The way that bodies go: from there to here, and only then to the host. Nothing has begun that needs this slot.
  void expect_access(const OpenedGpuMemory& opened, uint64_t pattern) {
    const auto expected = pattern_of(pattern);
    auto words = expected;
    words.fill(0);
    std::byte* const here = mine_.slot(num_begun_).data;
    LADDER_CUDA_CHECK(
        cudaMemcpyAsync(here, static_cast<const std::byte*>(opened.address) + kGpuSlots * kGpuSlotBytes,
                        kPatternBytes, cudaMemcpyDefault, stream_));
    LADDER_CUDA_CHECK(cudaMemcpyAsync(words.data(), here, kPatternBytes, cudaMemcpyDefault, stream_));
    LADDER_CUDA_CHECK(cudaStreamSynchronize(stream_));
    LADDER_CHECK(
        words == expected,
        "what lies in the memory of the other end's GPU did not arrive on {}, though the driver reports "
        "access",
        device_name(device_));
  }
  // Copies that are under way end first.
  void let_go() {
    cudaSetDevice(device_.index);
    cudaStreamSynchronize(stream_);
    for (OpenedGpuMemory& opened : theirs_)
      if (opened.address != nullptr) close_gpu_memory(opened);
    for (const cudaEvent_t event : has_come_)
      if (event != nullptr) cudaEventDestroy(event);
    cudaStreamDestroy(stream_);
    cudaGetLastError();
  }

  const Device device_;
  const GpuSlots mine_;
  std::vector<OpenedGpuMemory> theirs_;  // by source
  cudaStream_t stream_ = nullptr;
  std::array<cudaEvent_t, kGpuSlots> has_come_{};
  int64_t num_begun_ = 0, num_left_ = 0;  // bodies, ever
};

class GpuChannel final : public KvChannel {
  template <class Work>
  auto closing_on_error(Work work) {
    if (is_closed_) throw KvChannelError("the channel has failed or was closed");
    try {
      return work();
    } catch (const Error&) {  // one of CUDA's too: a part of a message may be under way
      close();
      throw;
    }
  }

 public:
  GpuChannel(MemoryStreams streams, std::shared_ptr<ParkedSlots> parked)
      : socket_(std::move(streams.socket)),
        parked_(std::move(parked)),
        messages_stream_(*streams.streams[0]),
        messages_(std::move(streams.streams[0])),
        read_slots_(std::move(streams.streams[1])) {}

  ~GpuChannel() override {
    GpuChannel::close();
    landings_.clear();                       // first: then the other end may free its slots,
    ::shutdown(socket_->number(), SHUT_WR);  // which this says
    for (Source& source : sources_) parked_->park(std::move(source.slots), socket_);
  }

  void send(std::span<const std::byte> head, std::span<const std::byte> body, KvDeadline deadline) override {
    LADDER_CHECK(head.size() <= kMaxKvMessageHead && body.size() <= kMaxKvMessageBody,
                 "a message of {} and {} bytes: at most {} and {} can be sent", head.size(), body.size(),
                 kMaxKvMessageHead, kMaxKvMessageBody);
    Envelope envelope;
    envelope.body_size = body.size();
    send_envelope(envelope, head, deadline);
    if (body.empty()) return;
    closing_on_error([&] {
      messages_.send_bodies_as(sent_form_);
      messages_.send({}, body, deadline);
      sent_counts_ += messages_.take_sent_counts();
    });
  }

  KvMessageHead receive_head(KvDeadline deadline) override {
    LADDER_CHECK(current_.body_size == 0, "a message's body of {} bytes has not been received yet",
                 current_.body_size);
    return closing_on_error([&] {
      if (current_.landing != nullptr) current_.landing->leave();  // its slot here may be filled again
      current_ = {};
      if (arrived_.empty()) fetch(deadline);
      current_ = std::move(arrived_.front());
      arrived_.pop_front();
      look_ahead(deadline);
      return KvMessageHead{std::move(current_.head), current_.body_size};
    });
  }

  void receive_body(std::span<std::byte> body, KvDeadline deadline) override {
    LADDER_CHECK(body.size() == current_.body_size, "a message's body of {} bytes is read as one of {}",
                 current_.body_size, body.size());
    LADDER_CHECK(!current_.is_on_gpu, "a body on a GPU is read as one of the host: {}", kWhereTo);
    if (body.empty()) return;
    closing_on_error([&] { messages_.receive_body(body, deadline); });
    has_body_of_host_ = false;
    current_.body_size = 0;
  }

  void close() noexcept override {
    is_closed_ = true;  // first: whoever is woken looks at it
    messages_.close();
    read_slots_->close();
  }

  size_t body_bytes() const override { return kGpuSlotBytes; }

  KvBody room_for(size_t size, Device device, KvDeadline deadline, int lane) override {
    if (device.type != DeviceType::cuda) return KvChannel::room_for(size, device, deadline, lane);
    LADDER_CHECK(size <= kGpuSlotBytes, "a body of {} bytes on a GPU: at most {} are possible", size,
                 kGpuSlotBytes);
    LADDER_CHECK(lane >= 0 && lane < kMostKvLanes, "a body of lane {}: there are {}", lane, kMostKvLanes);
    Source& source = source_on(device);
    closing_on_error([&] {
      while (source.num_sent - source.num_read == kGpuSlots || (!sent_.empty() && read_slots_->has_bytes())) {
        std::byte said;
        read_slots_->read({&said, 1}, deadline);
        if (sent_.empty() || said != byte_of(num_read_))
          throw KvChannelError("the reader gives back a slot that is not the next one");
        ++num_read_;
        ++sources_[sent_.front()].num_read;
        sent_.pop_front();
      }
    });
    next_lane_ = lane;
    return source.slots->slot(source.num_sent).part(0, size);
  }

  void send_body(std::span<const std::byte> head, const KvBody& body, KvDeadline deadline) override {
    if (body.device.type != DeviceType::cuda) return KvChannel::send_body(head, body, deadline);
    Source& source = source_on(body.device);
    LADDER_CHECK(body.data == source.slots->slot(source.num_sent).data && body.size > 0,
                 "a body on a GPU that is not where there was room for it");
    Envelope envelope;
    envelope.body_size = body.size;
    envelope.is_on_gpu = 1;
    envelope.lane = static_cast<uint64_t>(next_lane_);
    envelope.source = static_cast<uint64_t>(&source - sources_.data());
    envelope.slot = static_cast<uint64_t>(source.num_sent);
    envelope.slots = source.slots->handle();
    send_envelope(envelope, head, deadline);
    ++source.num_sent;
    sent_.push_back(static_cast<size_t>(envelope.source));
  }

  KvBody take_body(size_t size, Device device, KvDeadline deadline) override {
    if (!current_.is_on_gpu) return KvChannel::take_body(size, device, deadline);
    LADDER_CHECK(size == current_.body_size, "a message's body of {} bytes is read as one of {}",
                 current_.body_size, size);
    LADDER_CHECK(device.type == DeviceType::cuda, "a body on a GPU is read into {}: {}", device_name(device),
                 kWhereTo);
    return closing_on_error([&] {
      Landing*& of_lane = lanes_[current_.lane];
      if (of_lane == nullptr) of_lane = &landing_on(device);
      LADDER_CHECK(of_lane->device() == device, "bodies to {} and to {}: expected those of a lane on one GPU",
                   device_name(of_lane->device()), device_name(device));
      look_ahead(deadline);  // with this one first: it is the oldest, so there is room
      while (!current_.landing->has_come(current_.number)) {
        if (is_closed_) throw KvChannelError("the channel was closed");
        if (is_over(deadline)) throw KvChannelError("a GPU's copy has not come, and the time is over");
        look_ahead(deadline);
        std::this_thread::yield();
      }
      give_back(deadline);
      return current_.landing->body(current_.number, std::exchange(current_.body_size, 0));
    });
  }

 private:
  static constexpr const char* kWhereTo =
      "between a GPU and the host keys and values go over tcp:// or shm://";

  // A GPU of the sender's.
  struct Source {
    std::unique_ptr<GpuSlots> slots;
    int64_t num_sent = 0, num_read = 0;  // bodies, ever
  };
  struct Arrived {
    std::vector<std::byte> head;
    size_t body_size = 0;  // 0: none, or it was received
    bool is_on_gpu = false;
    size_t lane = 0, source = 0;
    uint64_t slot = 0;
    GpuSlotsHandle slots;
    Landing* landing = nullptr;  // of a copy that has begun,
    int64_t number = 0;          // and its number there
  };

  static std::byte byte_of(int64_t number) { return static_cast<std::byte>(number % kGpuSlots); }

  Source& source_on(Device device) {
    for (Source& source : sources_)
      if (source.slots->device() == device) return source;
    LADDER_CHECK(std::ssize(sources_) < kMostGpus, "bodies on more than {} GPUs", kMostGpus);
    return sources_.emplace_back(Source{std::make_unique<GpuSlots>(device), 0, 0});
  }
  Landing& landing_on(Device device) {
    for (const auto& landing : landings_)
      if (landing->device() == device) return *landing;
    return *landings_.emplace_back(std::make_unique<Landing>(device));
  }

  void send_envelope(const Envelope& envelope, std::span<const std::byte> head, KvDeadline deadline) {
    closing_on_error([&] {
      messages_.send_bodies_as(KvBodyForm::plain);
      messages_.send(std::as_bytes(std::span(&envelope, 1)), head, deadline);
    });
  }

  // The next message, without the bytes of its body.
  void fetch(KvDeadline deadline) {
    const KvMessageHead first = messages_.receive_head(deadline);
    Envelope envelope;
    if (first.head.size() != sizeof envelope) throw KvChannelError("a message without an envelope");
    std::memcpy(static_cast<void*>(&envelope), first.head.data(), sizeof envelope);
    if (envelope.magic != Envelope::kMagic || first.body_size > kMaxKvMessageHead ||
        envelope.body_size > (envelope.is_on_gpu ? kGpuSlotBytes : kMaxKvMessageBody))
      throw KvChannelError("a message in an envelope that is none");
    Arrived arrived;
    arrived.head.resize(first.body_size);
    if (first.body_size > 0) messages_.receive_body(arrived.head, deadline);
    arrived.body_size = envelope.body_size;
    arrived.is_on_gpu = envelope.is_on_gpu != 0;
    if (arrived.is_on_gpu) {
      if (envelope.body_size == 0 || envelope.lane >= kMostKvLanes || envelope.source >= kMostGpus ||
          envelope.slot != num_arrived_[envelope.source])
        throw KvChannelError("a body on a GPU that is not the next one");
      ++num_arrived_[envelope.source];
      arrived.lane = envelope.lane;
      arrived.source = envelope.source;
      arrived.slot = envelope.slot;
      arrived.slots = envelope.slots;
    } else if (arrived.body_size > 0) {
      if (messages_.receive_head(deadline).body_size != arrived.body_size)
        throw KvChannelError("a body of another size than its message's");
      has_body_of_host_ = true;
    }
    arrived_.push_back(std::move(arrived));
  }

  // What has come already, and what of it can be on its way: in order, as far as it is known where to and there is room.
  void look_ahead(KvDeadline deadline) {
    while (!has_body_of_host_ && std::ssize(arrived_) < kMostAhead && messages_stream_.has_bytes())
      fetch(deadline);
    if (!has_begun(current_)) return;
    for (Arrived& next : arrived_)
      if (!has_begun(next)) return;
  }
  // Now, or it need not: it is the host's.
  bool has_begun(Arrived& body) {
    if (!body.is_on_gpu || body.landing != nullptr) return true;
    Landing* const landing = lanes_[body.lane];
    if (landing == nullptr || !landing->has_room()) return false;
    body.number = landing->begin(body.source, body.slots, body.slot, body.body_size);
    body.landing = landing;
    return true;
  }

  // The slot of the body that is being given to the user.
  void give_back(KvDeadline deadline) {
    const std::byte said_byte = byte_of(num_given_back_++);
    const std::span<const std::byte> said[] = {{&said_byte, 1}};
    try {
      read_slots_->write(said, deadline);
    } catch (
        const KvChannelError&) {  // the sender has closed its end: what it sent before is as good as ever
    }
  }

  const std::shared_ptr<const FileDescriptor> socket_;
  const std::shared_ptr<ParkedSlots> parked_;
  const RingStream& messages_stream_;  // owned by:
  StreamChannel messages_;
  const std::unique_ptr<RingStream> read_slots_;
  std::atomic<bool> is_closed_{false};

  // Of the thread that sends.
  std::vector<Source> sources_;
  std::deque<size_t> sent_;  // the sources of bodies that were not given back
  int64_t num_read_ = 0;     // bodies that were, ever
  int next_lane_ = 0;        // of the body that there was room for last

  // Of the thread that receives.
  std::vector<std::unique_ptr<Landing>> landings_;
  std::array<Landing*, kMostKvLanes> lanes_{};
  std::array<uint64_t, kMostGpus> num_arrived_{};  // bodies of each source, ever
  int64_t num_given_back_ = 0;
  std::deque<Arrived> arrived_;  // not yet given to the user
  Arrived current_;              // that was given last
  bool has_body_of_host_ = false;
};

class GpuListener final : public KvListener {
 public:
  explicit GpuListener(std::string_view name) : listener_("cuda", name, kNumStreams) {
    std::string reason;
    LADDER_CHECK(cuda_device_count(&reason) > 0, "{}: no GPU can be used: {}", listener_.address(), reason);
  }

  std::string address() const override { return listener_.address(); }
  std::unique_ptr<KvChannel> accept(KvDeadline deadline) override {
    parked_->sweep();
    auto streams = listener_.accept(deadline);
    return streams ? std::make_unique<GpuChannel>(std::move(*streams), parked_) : nullptr;
  }
  void close() noexcept override { listener_.close(); }

 private:
  MemoryStreamListener listener_;
  const std::shared_ptr<ParkedSlots> parked_ = std::make_shared<ParkedSlots>();
};

}  // namespace

std::unique_ptr<KvListener> listen_on_gpu(std::string_view place, const HostSecret& /*secret*/) {
  return std::make_unique<GpuListener>(place);
}

std::unique_ptr<KvChannel> connect_to_gpu(std::string_view place, KvDeadline deadline,
                                          const HostSecret& /*secret*/, KvListening listening) {
  return std::make_unique<GpuChannel>(connect_memory_streams("cuda", place, kNumStreams, deadline, listening),
                                      std::make_shared<ParkedSlots>());
}

}  // namespace ladder

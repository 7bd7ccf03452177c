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

struct Envelope {
  static constexpr uint64_t kMagic = 0x3155504744414c56;

  uint64_t magic = kMagic;
  uint64_t body_size = 0;
  uint64_t is_on_gpu = 0;
  uint64_t slot = 0;  // of a body that is: counted for ever
  GpuSlotsHandle slots;
};
static_assert(std::is_trivially_copyable_v<Envelope>);

void set_device(Device device) {
  LADDER_CUDA_CHECK(cudaSetDevice(device.index));
}

// The reader's side of a sender's slots: copies from them into slots of his own, in order.
class SlotReader {
 public:
  SlotReader(const GpuSlotsHandle& theirs, Device device) : device_(device), mine_(device) {
    set_device(device_);
    LADDER_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    try {
      for (cudaEvent_t& event : has_come_)
        LADDER_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
      theirs_ = open_gpu_memory(theirs.memory, device_.index, "the other end");
      expect_access(theirs.pattern);
    } catch (...) {
      let_go();
      throw;
    }
  }
  ~SlotReader() { let_go(); }
  SlotReader(const SlotReader&) = delete;

  Device device() const { return device_; }
  // The number-th body, into the slot of that number.
  void begin(int64_t number, size_t size) {
    set_device(device_);
    LADDER_CUDA_CHECK(
        cudaMemcpyAsync(mine_.slot(number).data, their_slot(number), size, cudaMemcpyDefault, stream_));
    LADDER_CUDA_CHECK(cudaEventRecord(event_of(number), stream_));
  }
  bool has_come(int64_t number) const {
    const cudaError_t status = cudaEventQuery(event_of(number));
    if (status == cudaErrorNotReady) return false;
    LADDER_CUDA_CHECK(status);
    return true;
  }
  KvBody body(int64_t number, size_t size) const { return mine_.slot(number).part(0, size); }

 private:
  const std::byte* their_slot(int64_t number) const {
    return static_cast<const std::byte*>(theirs_.address) +
           static_cast<size_t>(number % kGpuSlots) * kGpuSlotBytes;
  }
  cudaEvent_t event_of(int64_t number) const { return has_come_[static_cast<size_t>(number % kGpuSlots)]; }

  // The way that bodies go: from there to here, and only then to the host.
  void expect_access(uint64_t pattern) {
    const auto expected = pattern_of(pattern);
    auto words = expected;
    words.fill(0);
    std::byte* const here = mine_.slot(0).data;
    LADDER_CUDA_CHECK(
        cudaMemcpyAsync(here, static_cast<const std::byte*>(theirs_.address) + kGpuSlots * kGpuSlotBytes,
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
    close_gpu_memory(theirs_);
    for (const cudaEvent_t event : has_come_)
      if (event != nullptr) cudaEventDestroy(event);
    cudaStreamDestroy(stream_);
    cudaGetLastError();
  }

  const Device device_;
  const GpuSlots mine_;
  OpenedGpuMemory theirs_;
  cudaStream_t stream_ = nullptr;
  std::array<cudaEvent_t, kGpuSlots> has_come_{};
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
    reader_.reset();                         // first: then the other end may free its slots,
    ::shutdown(socket_->number(), SHUT_WR);  // which this says
    if (slots_ != nullptr) parked_->park(std::move(slots_), socket_);
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
      current_ = {};  // its slot here may be filled again
      if (arrived_.empty()) fetch(deadline);
      current_ = std::move(arrived_.front());
      arrived_.pop_front();
      num_given_ += current_.is_on_gpu;
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

  KvBody room_for(size_t size, Device device, KvDeadline deadline) override {
    if (device.type != DeviceType::cuda) return KvChannel::room_for(size, device, deadline);
    LADDER_CHECK(size <= kGpuSlotBytes, "a body of {} bytes on a GPU: at most {} are possible", size,
                 kGpuSlotBytes);
    if (slots_ == nullptr) slots_ = std::make_unique<GpuSlots>(device);
    LADDER_CHECK(slots_->device() == device, "bodies on {} and on {}: expected those of a channel on one GPU",
                 device_name(slots_->device()), device_name(device));
    closing_on_error([&] {
      while (num_sent_ - num_read_ == kGpuSlots || (num_read_ < num_sent_ && read_slots_->has_bytes())) {
        std::byte slot;
        read_slots_->read({&slot, 1}, deadline);
        if (slot != byte_of(num_read_))
          throw KvChannelError("the reader gives back a slot that is not the next one");
        ++num_read_;
      }
    });
    return slots_->slot(num_sent_).part(0, size);
  }

  void send_body(std::span<const std::byte> head, const KvBody& body, KvDeadline deadline) override {
    if (body.device.type != DeviceType::cuda) return KvChannel::send_body(head, body, deadline);
    LADDER_CHECK(slots_ != nullptr && body.data == slots_->slot(num_sent_).data && body.size > 0,
                 "a body on a GPU that is not where there was room for it");
    Envelope envelope;
    envelope.body_size = body.size;
    envelope.is_on_gpu = 1;
    envelope.slot = static_cast<uint64_t>(num_sent_);
    envelope.slots = slots_->handle();
    send_envelope(envelope, head, deadline);
    ++num_sent_;
  }

  KvBody take_body(size_t size, Device device, KvDeadline deadline) override {
    if (!current_.is_on_gpu) return KvChannel::take_body(size, device, deadline);
    LADDER_CHECK(size == current_.body_size, "a message's body of {} bytes is read as one of {}",
                 current_.body_size, size);
    LADDER_CHECK(device.type == DeviceType::cuda, "a body on a GPU is read into {}: {}", device_name(device),
                 kWhereTo);
    return closing_on_error([&] {
      if (reader_ == nullptr) reader_ = std::make_unique<SlotReader>(current_.slots, device);
      LADDER_CHECK(reader_->device() == device,
                   "bodies to {} and to {}: expected those of a channel on one GPU",
                   device_name(reader_->device()), device_name(device));
      const int64_t number = num_given_ - 1;
      begin_copies(number);
      look_ahead(deadline);
      while (!reader_->has_come(number)) {
        if (is_closed_) throw KvChannelError("the channel was closed");
        if (is_over(deadline)) throw KvChannelError("a GPU's copy has not come, and the time is over");
        look_ahead(deadline);
        std::this_thread::yield();
      }
      give_back(number, deadline);
      return reader_->body(number, std::exchange(current_.body_size, 0));
    });
  }

 private:
  static constexpr const char* kWhereTo =
      "between a GPU and the host keys and values go over tcp:// or shm://";

  struct Arrived {
    std::vector<std::byte> head;
    size_t body_size = 0;  // 0: none, or it was received
    bool is_on_gpu = false;
    GpuSlotsHandle slots;
  };

  static std::byte byte_of(int64_t number) { return static_cast<std::byte>(number % kGpuSlots); }

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
    arrived.slots = envelope.slots;
    if (arrived.is_on_gpu) {
      if (envelope.slot != static_cast<uint64_t>(num_arrived_) || envelope.body_size == 0)
        throw KvChannelError("a body on a GPU that is not the next one");
      sizes_[static_cast<size_t>(num_arrived_++ % kGpuSlots)] = arrived.body_size;
    } else if (arrived.body_size > 0) {
      if (messages_.receive_head(deadline).body_size != arrived.body_size)
        throw KvChannelError("a body of another size than its message's");
      has_body_of_host_ = true;
    }
    arrived_.push_back(std::move(arrived));
  }

  // What has come already, and what of it can be on its way: no more than there are slots for.
  void look_ahead(KvDeadline deadline) {
    while (!has_body_of_host_ && std::ssize(arrived_) + 1 < kGpuSlots && messages_stream_.has_bytes())
      fetch(deadline);
    if (reader_ != nullptr) begin_copies(num_arrived_ - 1);
  }

  void give_back(int64_t number, KvDeadline deadline) {
    const std::byte slot = byte_of(number);
    const std::span<const std::byte> said[] = {{&slot, 1}};
    try {
      read_slots_->write(said, deadline);
    } catch (
        const KvChannelError&) {  // the sender has closed its end: what it sent before is as good as ever
    }
  }

  // Up to that one. The body that was given last holds its slot until the next head.
  void begin_copies(int64_t last) {
    for (; num_begun_ <= last; ++num_begun_)
      reader_->begin(num_begun_, sizes_[static_cast<size_t>(num_begun_ % kGpuSlots)]);
  }

  const std::shared_ptr<const FileDescriptor> socket_;
  const std::shared_ptr<ParkedSlots> parked_;
  const RingStream& messages_stream_;  // owned by:
  StreamChannel messages_;
  const std::unique_ptr<RingStream> read_slots_;
  std::atomic<bool> is_closed_{false};

  // Of the thread that sends.
  std::unique_ptr<GpuSlots> slots_;
  int64_t num_sent_ = 0, num_read_ = 0;  // bodies on the GPU, ever

  // Of the thread that receives.
  std::unique_ptr<SlotReader> reader_;
  std::deque<Arrived> arrived_;  // not yet given to the user
  Arrived current_;              // that was given last
  bool has_body_of_host_ = false;
  // Bodies on the GPU, ever: heads that have come, copies that have begun, messages that were given. Never more than kGpuSlots
  // between the last two, the one that the user has included.
  int64_t num_arrived_ = 0, num_begun_ = 0, num_given_ = 0;
  std::array<size_t, kGpuSlots> sizes_{};
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

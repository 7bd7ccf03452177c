// cuda://NAME: bodies from one GPU of this machine to another, or to the same one, without the host: the sender fills a slot of
// memory on its GPU, and the reader's copy engine fetches it from there (gpu_channel.h). Heads, and bodies of the host, go through
// memory that both processes see, as shm:// has it; so does the number of a slot that was read.
//
//   sender    | slot | slot | slot |   ===== stream 1: heads; copy engine =====>   | slot | slot | slot |    reader
//                     <--- stream 2: slots to be filled again
//
// The sender's slots are opened by a handle of CUDA's, or by their address where both ends are threads of a process (a process
// cannot open its own handle). They are freed when the reader has let go of them, which he says with the end of his socket, as
// his death does (ParkedSlots). Where the sender dies, memory that is open here stays until it is closed here.
#include <sys/socket.h>

#include "step1_layers/core/device_cuda.h"
#include "step8_advanced/disaggregation/transport/gpu_channel.h"
#include "step8_advanced/disaggregation/transport/memory_streams.h"
#include "step8_advanced/disaggregation/transport/transport_rows.h"

namespace ladder {

namespace {

constexpr int kNumStreams = 2;

void set_device(Device device) {
  LADDER_CUDA_CHECK(cudaSetDevice(device.index));
}

// The reader's side of a sender's slots: copies from them into slots of his own, in order.
class SlotReader {
 public:
  SlotReader(const GpuSlotsHandle& theirs, Device device) : mine_(device), stream_(device) {
    expect_slots_as_here(theirs);
    theirs_.memory = open_gpu_memory(theirs.memory, device.index, "the other end");
    expect_access(theirs.pattern);
  }

  // The number-th body, into the slot of that number.
  void begin(int64_t number, size_t size) {
    set_device(mine_.device());
    LADDER_CUDA_CHECK(
        cudaMemcpyAsync(slot(number).data, their_slot(number), size, cudaMemcpyDefault, stream_.get()));
    stream_.record(number);
  }
  bool has_come(int64_t number) const { return stream_.is_past(number); }
  KvBody slot(int64_t number) const { return mine_.slot(number); }

 private:
  struct Opened {
    OpenedGpuMemory memory;
    ~Opened() { close_gpu_memory(memory); }
  };

  const std::byte* their_slot(int64_t number) const {
    return static_cast<const std::byte*>(theirs_.memory.address) +
           static_cast<size_t>(number % kGpuSlots) * kGpuSlotBytes;
  }

  // The way that bodies go: from there to here, and only then to the host.
  void expect_access(uint64_t pattern) {
    const auto expected = pattern_of(pattern);
    auto words = expected;
    words.fill(0);
    std::byte* const here = slot(0).data;
    const auto* const there =
        static_cast<const std::byte*>(theirs_.memory.address) + kGpuSlots * kGpuSlotBytes;
    LADDER_CUDA_CHECK(cudaMemcpyAsync(here, there, kPatternBytes, cudaMemcpyDefault, stream_.get()));
    LADDER_CUDA_CHECK(cudaMemcpyAsync(words.data(), here, kPatternBytes, cudaMemcpyDefault, stream_.get()));
    LADDER_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
    LADDER_CHECK(
        words == expected,
        "what lies in the memory of the other end's GPU did not arrive on {}, though the driver reports "
        "access",
        device_name(mine_.device()));
  }

  const GpuSlots mine_;
  Opened theirs_;
  SlotStream stream_;  // last: its copies end first
};

class PeerCopies final : public GpuBodyWay {
 public:
  PeerCopies(std::shared_ptr<const FileDescriptor> socket, std::unique_ptr<RingStream> read_slots,
             std::shared_ptr<ParkedSlots> parked)
      : socket_(std::move(socket)), read_slots_(std::move(read_slots)), parked_(std::move(parked)) {}
  ~PeerCopies() override {
    reader_.reset();                         // first: then the other end may free its slots,
    ::shutdown(socket_->number(), SHUT_WR);  // which this says
    if (slots_ != nullptr) parked_->park(std::move(slots_), socket_);
  }

  void open_to_send(Device from) override { slots_ = std::make_unique<GpuSlots>(from); }
  KvBody slot_to_fill(int64_t number, KvDeadline deadline) override {
    while (number - num_read_ == kGpuSlots || (num_read_ < number && read_slots_->has_bytes())) {
      std::byte slot;
      read_slots_->read({&slot, 1}, deadline);
      if (slot != byte_of(num_read_))
        throw KvChannelError("the reader gives back a slot that is not the next one");
      ++num_read_;
    }
    return slots_->slot(number);
  }
  GpuBodyOffer send(int64_t /*number*/, size_t /*size*/) override { return GpuBodyOffer(slots_->handle()); }

  void open_to_receive(const GpuBodyOffer& offer, Device to, KvDeadline /*deadline*/) override {
    reader_ = std::make_unique<SlotReader>(offer.as<GpuSlotsHandle>(), to);
  }
  void begin(int64_t number, size_t size, KvDeadline /*deadline*/) override { reader_->begin(number, size); }
  bool has_come(int64_t number) override { return reader_->has_come(number); }
  KvBody received(int64_t number) const override { return reader_->slot(number); }
  void give_back(int64_t number, KvDeadline deadline) override {
    const std::byte slot = byte_of(number);
    const std::span<const std::byte> said[] = {{&slot, 1}};
    try {
      read_slots_->write(said, deadline);
    } catch (
        const KvChannelError&) {  // the sender has closed its end: what it sent before is as good as ever
    }
  }

  void close() noexcept override { read_slots_->close(); }

 private:
  static std::byte byte_of(int64_t number) { return static_cast<std::byte>(number % kGpuSlots); }

  const std::shared_ptr<const FileDescriptor> socket_;
  const std::unique_ptr<RingStream> read_slots_;
  const std::shared_ptr<ParkedSlots> parked_;
  std::unique_ptr<GpuSlots> slots_;     // of the thread that sends
  int64_t num_read_ = 0;                // bodies that the reader has given back, ever
  std::unique_ptr<SlotReader> reader_;  // of the thread that receives
};

std::unique_ptr<KvChannel> channel_over(MemoryStreams streams, std::shared_ptr<ParkedSlots> parked) {
  const RingStream& messages = *streams.streams[0];
  return std::make_unique<GpuChannel>(
      std::move(streams.streams[0]), [&messages] { return messages.has_bytes(); },
      std::make_unique<PeerCopies>(std::move(streams.socket), std::move(streams.streams[1]),
                                   std::move(parked)));
}

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
    return streams ? channel_over(std::move(*streams), parked_) : nullptr;
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
  return channel_over(connect_memory_streams("cuda", place, kNumStreams, deadline, listening),
                      std::make_shared<ParkedSlots>());
}

}  // namespace ladder

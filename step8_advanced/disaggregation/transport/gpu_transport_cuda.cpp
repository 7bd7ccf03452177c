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
constexpr size_t kRingBytes = 8 * KvRing::kPiece;

void set_device(Device device) {
  LADDER_CUDA_CHECK(cudaSetDevice(device.index));
}

// One of the reader's GPUs: copies from the sender's slots, on whatever GPUs they are.
class CopyLanding final : public GpuLanding {
 public:
  explicit CopyLanding(Device device) : GpuLanding(device), stream_(device) {}

  bool has_come(int64_t number) override { return stream_.is_past(number); }

 private:
  struct Opened {
    OpenedGpuMemory memory;

    explicit Opened(const OpenedGpuMemory& opened) : memory(opened) {}
    ~Opened() { close_gpu_memory(memory); }
    Opened(const Opened&) = delete;
  };

  void begin_in(const KvBody& slot, int64_t mine, size_t source, const GpuBodyOffer& offer, int64_t number,
                KvDeadline /*deadline*/) override {
    set_device(device());
    const std::byte* const from = their_memory(source, offer.as<GpuSlotsHandle>(), slot) +
                                  static_cast<size_t>(number % kGpuSlots) * kGpuSlotBytes;
    LADDER_CUDA_CHECK(cudaMemcpyAsync(slot.data, from, slot.size, cudaMemcpyDefault, stream_.get()));
    stream_.record(mine);
  }

  const std::byte* their_memory(size_t source, const GpuSlotsHandle& theirs, const KvBody& slot) {
    std::unique_ptr<Opened>& opened = theirs_.at(source);
    if (opened == nullptr) {
      expect_slots_as_here(theirs);
      opened = std::make_unique<Opened>(open_gpu_memory(theirs.memory, device().index, "the other end"));
      expect_access(static_cast<const std::byte*>(opened->memory.address), theirs.pattern, slot);
    }
    return static_cast<const std::byte*>(opened->memory.address);
  }
  // The way that bodies go: from there to a slot here that nothing else needs yet, and only then to the host.
  void expect_access(const std::byte* theirs, uint64_t pattern, const KvBody& slot) const {
    const auto expected = pattern_of(pattern);
    auto words = expected;
    words.fill(0);
    LADDER_CUDA_CHECK(cudaMemcpyAsync(slot.data, theirs + kGpuSlots * kGpuSlotBytes, kPatternBytes,
                                      cudaMemcpyDefault, stream_.get()));
    LADDER_CUDA_CHECK(
        cudaMemcpyAsync(words.data(), slot.data, kPatternBytes, cudaMemcpyDefault, stream_.get()));
    LADDER_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
    LADDER_CHECK(
        words == expected,
        "what lies in the memory of the other end's GPU did not arrive on {}, though the driver reports "
        "access",
        device_name(device()));
  }

  std::array<std::unique_ptr<Opened>, kMostGpuSources> theirs_;
  SlotStream stream_;  // last: its copies end first
};

class PeerCopies final : public GpuBodyWay {
 public:
  PeerCopies(std::shared_ptr<const FileDescriptor> socket, std::unique_ptr<RingStream> read_slots,
             std::shared_ptr<ParkedSlots> parked)
      : socket_(std::move(socket)), read_slots_(std::move(read_slots)), parked_(std::move(parked)) {}
  ~PeerCopies() override {
    landings_.clear();                       // first: then the other end may free its slots,
    ::shutdown(socket_->number(), SHUT_WR);  // which this says
    for (Source& source : sources_) parked_->park(std::move(source.slots), socket_);
  }

  size_t source_of(Device device, int /*lane*/) override {
    for (size_t source = 0; source < sources_.size(); ++source)
      if (sources_[source].slots->device() == device) return source;
    LADDER_CHECK(std::ssize(sources_) < kMostGpuSources, "bodies on more than {} GPUs", kMostGpuSources);
    sources_.push_back({std::make_unique<GpuSlots>(device)});
    return sources_.size() - 1;
  }
  KvBody slot_to_fill(size_t source, int64_t number, KvDeadline deadline) override {
    while (number - sources_[source].num_read == kGpuSlots || (!sent_.empty() && read_slots_->has_bytes())) {
      std::byte said;
      read_slots_->read({&said, 1}, deadline);
      if (sent_.empty() || said != byte_of(num_read_))
        throw KvChannelError("the reader gives back a slot that is not the next one");
      ++num_read_;
      ++sources_[sent_.front()].num_read;
      sent_.pop_front();
    }
    return sources_[source].slots->slot(number);
  }
  GpuBodyOffer send(size_t source, int64_t /*number*/, size_t /*size*/) override {
    sent_.push_back(source);
    return GpuBodyOffer(sources_[source].slots->handle());
  }

  GpuLanding& landing_of(const GpuBodyOffer& /*offer*/, Device device, int /*lane*/,
                         KvDeadline /*deadline*/) override {
    for (const auto& landing : landings_)
      if (landing->device() == device) return *landing;
    return *landings_.emplace_back(std::make_unique<CopyLanding>(device));
  }
  void give_back(KvDeadline deadline) override {
    const std::byte said_byte = byte_of(num_given_back_++);
    const std::span<const std::byte> said[] = {{&said_byte, 1}};
    try {
      read_slots_->write(said, deadline);
    } catch (
        const KvChannelError&) {  // the sender has closed its end: what it sent before is as good as ever
    }
  }

  void close() noexcept override { read_slots_->close(); }

 private:
  struct Source {
    std::unique_ptr<GpuSlots> slots;
    int64_t num_read = 0;  // bodies that the reader has given back, ever
  };
  static std::byte byte_of(int64_t number) { return static_cast<std::byte>(number % kGpuSlots); }

  const std::shared_ptr<const FileDescriptor> socket_;
  const std::unique_ptr<RingStream> read_slots_;
  const std::shared_ptr<ParkedSlots> parked_;

  // Of the thread that sends.
  std::vector<Source> sources_;  // a GPU each
  std::deque<size_t> sent_;      // the sources of bodies that were not given back
  int64_t num_read_ = 0;         // bodies that were, ever

  // Of the thread that receives.
  std::vector<std::unique_ptr<CopyLanding>> landings_;  // a GPU each
  int64_t num_given_back_ = 0;
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
  explicit GpuListener(std::string_view name) : listener_("cuda", name, kNumStreams, kRingBytes) {
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

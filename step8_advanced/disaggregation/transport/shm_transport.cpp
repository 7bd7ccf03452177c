// shm://NAME: a stream through two rings in memory that both processes see (memory_streams.h).
#include "step8_advanced/disaggregation/transport/memory_streams.h"
#include "step8_advanced/disaggregation/transport/transport_rows.h"

namespace ladder {

namespace {

// While one side is not running the other goes on for this long, and then sleeps: at 8 GB/s a millisecond. With more processes
// than cores turns take some. It is a part of what the processor's last cache holds.
constexpr size_t kRingBytes = 64 * KvRing::kPiece;

std::unique_ptr<KvChannel> channel_over(MemoryStreams streams) {
  return std::make_unique<StreamChannel>(std::move(streams.streams[0]));
}

class MemoryListener final : public KvListener {
 public:
  explicit MemoryListener(std::string_view name) : listener_("shm", name, 1, kRingBytes) {}

  std::string address() const override { return listener_.address(); }
  std::unique_ptr<KvChannel> accept(KvDeadline deadline) override {
    auto streams = listener_.accept(deadline);
    return streams ? channel_over(std::move(*streams)) : nullptr;
  }
  void close() noexcept override { listener_.close(); }

 private:
  MemoryStreamListener listener_;
};

}  // namespace

std::unique_ptr<KvListener> listen_in_memory(std::string_view place, const HostSecret& /*secret*/) {
  return std::make_unique<MemoryListener>(place);
}

std::unique_ptr<KvChannel> connect_in_memory(std::string_view place, KvDeadline deadline,
                                             const HostSecret& /*secret*/, KvListening listening) {
  return channel_over(connect_memory_streams("shm", place, 1, deadline, listening));
}

}  // namespace ladder

#pragma once
// Messages over whatever carries bytes in order: what the transports over sockets and over shared memory have in common.
#include <atomic>
#include <memory>
#include <span>

#include "step8_advanced/disaggregation/transport/kv_channel.h"
#include "step8_advanced/disaggregation/transport/kv_compression.h"

namespace ladder {

// One thread may write while another reads.
class ByteStream {
 public:
  using Pieces = std::span<const std::span<const std::byte>>;

  virtual ~ByteStream() = default;
  // All of them, one piece after another. KvChannelError: they were not taken until the deadline, or never will be.
  virtual void write(Pieces pieces, KvDeadline deadline) = 0;
  // As many as there is room for. KvChannelError: they did not come until the deadline, or never will.
  virtual void read(std::span<std::byte> bytes, KvDeadline deadline) = 0;
  virtual void close() noexcept = 0;  // from any thread: write() and read() wait no longer
};

class StreamChannel final : public KvChannel {
 public:
  explicit StreamChannel(std::unique_ptr<ByteStream> stream) : stream_(std::move(stream)) {}
  ~StreamChannel() override { close(); }

  void send(std::span<const std::byte> head, std::span<const std::byte> body, KvDeadline deadline) override;
  KvMessageHead receive_head(KvDeadline deadline) override;
  void receive_body(std::span<std::byte> body, KvDeadline deadline) override;
  void close() noexcept override;

 private:
  // A part of a message may be under way, and what follows it would be taken for the rest of it.
  template <class Work>
  auto closing_on_error(Work work);

  const std::unique_ptr<ByteStream> stream_;
  std::atomic<bool> is_closed_{false};
  KvFrame received_;  // of the message whose head was received last; without a body once that was
  KvBodyPacker packer_;
  KvBodyUnpacker unpacker_;
};

}  // namespace ladder

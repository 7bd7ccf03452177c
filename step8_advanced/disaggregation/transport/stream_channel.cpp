#include "step8_advanced/disaggregation/transport/stream_channel.h"

#include <array>
namespace ladder {

template <class Work>
auto StreamChannel::closing_on_error(Work work) {
  if (is_closed_) throw KvChannelError("the channel has failed or was closed");
  try {
    return work();
  } catch (const KvChannelError&) {
    close();
    throw;
  }
}

void StreamChannel::send(std::span<const std::byte> head, std::span<const std::byte> body,
                         KvDeadline deadline) {
  const KvPackedBody packed = packer_.pack(body, sent_form_, sent_counts_);
  const auto frame = write_kv_frame({head.size(), body.size(), packed.form, packed.packed_size()});
  const std::span<const std::byte> pieces[] = {frame, head, packed.bytes};
  closing_on_error([&] { stream_->write(pieces, deadline); });
}

KvMessageHead StreamChannel::receive_head(KvDeadline deadline) {
  LADDER_CHECK(received_.body_size == 0, "a message's body of {} bytes has not been received yet",
               received_.body_size);
  return closing_on_error([&] {
    std::array<std::byte, kKvFrameBytes> bytes;
    stream_->read(bytes, deadline);
    const KvFrame frame = read_kv_frame(bytes);
    KvMessageHead message{std::vector<std::byte>(frame.head_size), frame.body_size};
    stream_->read(message.head, deadline);
    received_ = frame;
    return message;
  });
}

void StreamChannel::receive_body(std::span<std::byte> body, KvDeadline deadline) {
  LADDER_CHECK(body.size() == received_.body_size, "a message's body of {} bytes is read as one of {}",
               received_.body_size, body.size());
  closing_on_error([&] {
    unpacker_.receive(received_, body, [&](std::span<std::byte> bytes) { stream_->read(bytes, deadline); });
  });
  received_ = {};
}

void StreamChannel::close() noexcept {
  is_closed_ = true;
  stream_->close();
}

}  // namespace ladder

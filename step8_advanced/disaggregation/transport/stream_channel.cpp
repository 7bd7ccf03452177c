#include "step8_advanced/disaggregation/transport/stream_channel.h"

#include <array>

#include "step8_advanced/disaggregation/transport/kv_frame.h"

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
  const auto frame = write_kv_frame({head.size(), body.size()});
  const std::span<const std::byte> pieces[] = {frame, head, body};
  closing_on_error([&] { stream_->write(pieces, deadline); });
}

KvMessageHead StreamChannel::receive_head(KvDeadline deadline) {
  LADDER_CHECK(body_size_ == 0, "a message's body of {} bytes has not been received yet", body_size_);
  return closing_on_error([&] {
    std::array<std::byte, kKvFrameBytes> bytes;
    stream_->read(bytes, deadline);
    const KvFrame frame = read_kv_frame(bytes);
    KvMessageHead message{std::vector<std::byte>(frame.head_size), frame.body_size};
    stream_->read(message.head, deadline);
    body_size_ = frame.body_size;
    return message;
  });
}

void StreamChannel::receive_body(std::span<std::byte> body, KvDeadline deadline) {
  LADDER_CHECK(body.size() == body_size_, "a message's body of {} bytes is read as one of {}", body_size_,
               body.size());
  closing_on_error([&] { stream_->read(body, deadline); });
  body_size_ = 0;
}

void StreamChannel::close() noexcept {
  is_closed_ = true;
  stream_->close();
}

}  // namespace ladder

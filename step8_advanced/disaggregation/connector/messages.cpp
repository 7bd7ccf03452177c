#include "step8_advanced/disaggregation/connector/messages.h"

namespace ladder {

void send_kv_message(KvChannel& channel, const KvMessage& message, KvDeadline deadline,
                     std::span<const std::byte> body) {
  const std::string head = to_bytes(message);
  channel.send(std::as_bytes(std::span(head)), body, deadline);
}

void send_kv_parts(KvChannel& channel, const KvPartsHead& parts, const KvBody& body, KvDeadline deadline) {
  const std::string head = to_bytes(KvMessage(parts));
  channel.send_body(std::as_bytes(std::span(head)), body, deadline);
}

ReceivedKvMessage receive_kv_message(KvChannel& channel, KvDeadline deadline) {
  const KvMessageHead received = channel.receive_head(deadline);
  const std::string_view bytes(reinterpret_cast<const char*>(received.head.data()), received.head.size());
  try {
    return {from_bytes<KvMessage>(bytes), received.body_size};
  } catch (const Error& error) {
    throw KvChannelError(error.what());
  }
}

}  // namespace ladder

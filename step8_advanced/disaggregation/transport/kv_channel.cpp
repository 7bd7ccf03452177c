#include "step8_advanced/disaggregation/transport/kv_channel.h"

namespace ladder {

KvBody KvChannel::Room::of(size_t wanted, Device near) {
  if (memory == nullptr || size < wanted || near_type != near.type) {  // pinned for one GPU is pinned for all
    memory.reset();  // first: both need not be there at once
    memory = pinned_allocate(near, static_cast<int64_t>(wanted));
    size = wanted;
    near_type = near.type;
  }
  return {static_cast<std::byte*>(memory.get()), wanted, {}};
}

KvBody KvChannel::room_for(size_t size, Device device, KvDeadline /*deadline*/, int /*lane*/) {
  return to_send_.of(size, device);
}

void KvChannel::send_body(std::span<const std::byte> head, const KvBody& body, KvDeadline deadline) {
  send(head, body.on_host(), deadline);
}

KvBody KvChannel::take_body(size_t size, Device device, KvDeadline deadline) {
  const KvBody body = taken_.of(size, device);
  receive_body(body.on_host(), deadline);
  return body;
}

}  // namespace ladder

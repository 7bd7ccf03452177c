#pragma once
// Bodies on any device with a head that says what they are, for tests of channels.
#include <cstring>
#include <random>
#include <vector>

#include "step8_advanced/disaggregation/layout/kv_checksum.h"
#include "step8_advanced/disaggregation/layout/kv_copier.h"
#include "step8_advanced/disaggregation/transport/kv_channel.h"

namespace ladder::testing {

// The head is the body's checksum, as the host computes it.
inline void send_random_body(KvChannel& channel, size_t size, Device device, uint64_t seed,
                             KvDeadline deadline, int lane = 0) {
  const KvBody body = channel.room_for(size, device, deadline, lane);
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
    const uint64_t value = random();
    std::memcpy(&bytes[i], &value, std::min(sizeof value, size - i));
  }
  device_copy(body.data, body.device, bytes.data(), {}, static_cast<int64_t>(size));
  const uint32_t checksum = kv_checksum(bytes);
  channel.send_body(std::as_bytes(std::span(&checksum, 1)), body, deadline);
}

// Whether it is what was sent.
inline bool take_random_body(KvChannel& channel, Device device, KvCopier& copier, KvDeadline deadline) {
  const KvMessageHead message = channel.receive_head(deadline);
  uint32_t checksum = 0;
  if (message.head.size() != sizeof checksum) return false;
  std::memcpy(&checksum, message.head.data(), sizeof checksum);
  const KvBody body = channel.take_body(message.body_size, device, deadline);
  return body.size == message.body_size && copier.checksums(body, 1).at(0) == checksum;
}

}  // namespace ladder::testing

#include "step8_advanced/disaggregation/transport/kv_frame.h"

#include <bit>
#include <cstdint>
#include <cstring>

namespace ladder {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kVersion = 1;

struct Bytes {
  char magic[4] = {'L', 'D', 'K', 'V'};
  uint32_t version = kVersion;
  uint64_t head_size = 0, body_size = 0;
};
static_assert(sizeof(Bytes) == kKvFrameBytes, "no gaps");

}  // namespace

std::array<std::byte, kKvFrameBytes> write_kv_frame(const KvFrame& frame) {
  LADDER_CHECK(frame.head_size <= kMaxKvMessageHead && frame.body_size <= kMaxKvMessageBody,
               "a message of {} and {} bytes: at most {} and {} can be sent", frame.head_size,
               frame.body_size, kMaxKvMessageHead, kMaxKvMessageBody);
  Bytes bytes;
  bytes.head_size = frame.head_size;
  bytes.body_size = frame.body_size;
  return std::bit_cast<std::array<std::byte, kKvFrameBytes>>(bytes);
}

KvFrame read_kv_frame(std::span<const std::byte, kKvFrameBytes> bytes) {
  Bytes frame;
  std::memcpy(&frame, bytes.data(), sizeof frame);
  if (std::memcmp(frame.magic, Bytes().magic, sizeof frame.magic) != 0)
    throw KvChannelError("what came is no message of Ladder's");
  if (frame.version != kVersion)
    throw KvChannelError(
        fmt::format("a message of version {}: expected version {}", frame.version, kVersion));
  if (frame.head_size > kMaxKvMessageHead || frame.body_size > kMaxKvMessageBody)
    throw KvChannelError(fmt::format("a message of {} and {} bytes: at most {} and {} are expected",
                                     frame.head_size, frame.body_size, kMaxKvMessageHead, kMaxKvMessageBody));
  return {frame.head_size, frame.body_size};
}

}  // namespace ladder

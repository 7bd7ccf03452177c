#include "step8_advanced/disaggregation/transport/kv_frame.h"

#include <bit>
#include <cstdint>
#include <cstring>

namespace ladder {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kVersion = 2;

struct Bytes {
  char magic[4] = {'L', 'D', 'K', 'V'};
  uint32_t version = kVersion;
  uint64_t head_size = 0, body_size = 0;
  uint32_t packed_size = 0, form = 0;
};
static_assert(sizeof(Bytes) == kKvFrameBytes, "no gaps");

bool is_form(KvBodyForm form) {
  return form == KvBodyForm::plain || form == KvBodyForm::zstd || form == KvBodyForm::zstd_of_2_bytes ||
         form == KvBodyForm::zstd_of_4_bytes;
}

}  // namespace

std::array<std::byte, kKvFrameBytes> write_kv_frame(const KvFrame& frame) {
  LADDER_CHECK(frame.head_size <= kMaxKvMessageHead && frame.body_size <= kMaxKvMessageBody,
               "a message of {} and {} bytes: at most {} and {} can be sent", frame.head_size,
               frame.body_size, kMaxKvMessageHead, kMaxKvMessageBody);
  Bytes bytes;
  bytes.head_size = frame.head_size;
  bytes.body_size = frame.body_size;
  bytes.packed_size = static_cast<uint32_t>(frame.packed_size);
  bytes.form = static_cast<uint32_t>(frame.form);
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
  const KvFrame read{frame.head_size, frame.body_size, static_cast<KvBodyForm>(frame.form),
                     frame.packed_size};
  const bool is_shorter = read.packed_size > 0 && read.packed_size < read.body_size;
  if (!is_form(read.form) || (read.form == KvBodyForm::plain ? read.packed_size != 0 : !is_shorter))
    throw KvChannelError(fmt::format("a message whose body of {} bytes takes {} on the way, in form {}",
                                     frame.body_size, frame.packed_size, frame.form));
  return read;
}

}  // namespace ladder

#pragma once
// What stands before a message's bytes, in a stream or a file: little-endian, of a fixed size.
//
//   "LDKV" | version: u32 | size of the head: u64 | size of the body: u64 | head | body
#include <array>
#include <cstddef>
#include <span>

#include "step8_advanced/disaggregation/transport/kv_channel.h"

namespace ladder {

struct KvFrame {
  size_t head_size = 0, body_size = 0;

  bool operator==(const KvFrame&) const = default;
};

inline constexpr size_t kKvFrameBytes = 24;

// Error: a size is more than a message may have.
std::array<std::byte, kKvFrameBytes> write_kv_frame(const KvFrame& frame);
// KvChannelError: these are no such bytes, or those of another version, or a size is more than a message may have.
KvFrame read_kv_frame(std::span<const std::byte, kKvFrameBytes> bytes);

}  // namespace ladder

#pragma once
// What stands before a message's bytes, in a stream or a file: little-endian, of a fixed size.
//
//   "LDKV" | version: u32 | size of the head: u64 | size of the body: u64 | packed size: u32 | form: u32 | head | body
#include <array>
#include <cstddef>
#include <span>

#include "step8_advanced/disaggregation/transport/kv_channel.h"

namespace ladder {

struct KvFrame {
  size_t head_size = 0, body_size = 0;
  KvBodyForm form = KvBodyForm::plain;
  size_t packed_size =
      0;  // of a body whose form is another: what it takes on the way, fewer bytes than it has

  size_t body_size_on_the_way() const { return form == KvBodyForm::plain ? body_size : packed_size; }

  bool operator==(const KvFrame&) const = default;
};

inline constexpr size_t kKvFrameBytes = 32;

// Error: a size is more than a message may have.
std::array<std::byte, kKvFrameBytes> write_kv_frame(const KvFrame& frame);
// KvChannelError: these are no such bytes, or those of another version, a size is more than a message may have, or a form is none
// or does not shorten.
KvFrame read_kv_frame(std::span<const std::byte, kKvFrameBytes> bytes);

}  // namespace ladder

#pragma once
// Bodies that are shorter on the way, without loss, by zstd. Internal to this folder.
//
// Keys and values look like noise to a compressor that reads bytes in order: of a bf16 number the second byte (sign and most of
// the exponent) takes few values, the first one (mantissa) takes all. So the bytes are told apart first,
//
//   numbers of 2 bytes   a0 A0 a1 A1 a2 A2 ...   ->   a0 a1 a2 ... | A0 A1 A2 ... | what is left
//
// and zstd shortens each part by itself: one much, the other not at all.
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "step8_advanced/disaggregation/transport/kv_frame.h"

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace ladder {

struct KvPackedBody {
  KvBodyForm form = KvBodyForm::plain;
  std::span<const std::byte> bytes;

  size_t packed_size() const { return form == KvBodyForm::plain ? 0 : bytes.size(); }
};

class KvBodyPacker {
 public:
  KvBodyPacker();
  ~KvBodyPacker();

  // The body in this form, which is valid until the next call; or the body itself, where that is no longer.
  KvPackedBody pack(std::span<const std::byte> body, KvBodyForm form, KvBodyCounts& counts);

 private:
  struct Free {
    void operator()(ZSTD_CCtx_s* context) const;
  };
  std::unique_ptr<ZSTD_CCtx_s, Free> context_;
  std::vector<std::byte> planes_, packed_;
};

class KvBodyUnpacker {
 public:
  KvBodyUnpacker();
  ~KvBodyUnpacker();

  // The frame's body, whose bytes read(std::span<std::byte>) brings; body.size() is frame.body_size. What they claim takes no
  // memory: there is room for what the reader expects, and no more is filled. KvChannelError: they are no body of this size.
  template <class Read>
  void receive(const KvFrame& frame, std::span<std::byte> body, Read read) {
    if (frame.form == KvBodyForm::plain) return read(body);
    packed_.resize(frame.packed_size);
    read(std::span(packed_));
    unpack(frame.form, packed_, body);
  }
  void unpack(KvBodyForm form, std::span<const std::byte> packed, std::span<std::byte> body);

 private:
  struct Free {
    void operator()(ZSTD_DCtx_s* context) const;
  };
  std::unique_ptr<ZSTD_DCtx_s, Free> context_;
  std::vector<std::byte> planes_, packed_;
};

}  // namespace ladder

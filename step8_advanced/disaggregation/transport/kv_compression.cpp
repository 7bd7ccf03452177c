#include "step8_advanced/disaggregation/transport/kv_compression.h"

#include <zstd.h>

#include <chrono>
#include <cstring>

namespace ladder {

namespace {

// The fastest of those that write entropy codes. What higher levels look for, repeated strings, is not in keys and values.
constexpr int kLevel = 1;
// Of shorter ones a message's own cost is larger than what could be saved.
constexpr size_t kShortest = 4096;

template <class Number>
void split(std::span<const std::byte> body, std::span<std::byte> planes) {
  const size_t count = body.size() / sizeof(Number), whole = count * sizeof(Number);
  for (size_t i = 0; i < count; ++i) {
    Number number;
    std::memcpy(&number, &body[i * sizeof number], sizeof number);
    for (size_t plane = 0; plane < sizeof number; ++plane)
      planes[plane * count + i] = static_cast<std::byte>(number >> (8 * plane) & 0xff);
  }
  for (size_t i = whole; i < body.size(); ++i) planes[i] = body[i];
}

template <class Number>
void join(std::span<const std::byte> planes, std::span<std::byte> body) {
  const size_t count = body.size() / sizeof(Number), whole = count * sizeof(Number);
  for (size_t i = 0; i < count; ++i) {
    Number number = 0;
    for (size_t plane = 0; plane < sizeof number; ++plane)
      number = static_cast<Number>(number | static_cast<Number>(planes[plane * count + i]) << (8 * plane));
    std::memcpy(&body[i * sizeof number], &number, sizeof number);
  }
  for (size_t i = whole; i < body.size(); ++i) body[i] = planes[i];
}

}  // namespace

KvBodyPacker::KvBodyPacker() = default;
KvBodyPacker::~KvBodyPacker() = default;
KvBodyUnpacker::KvBodyUnpacker() = default;
KvBodyUnpacker::~KvBodyUnpacker() = default;

void KvBodyPacker::Free::operator()(ZSTD_CCtx_s* context) const {
  ::ZSTD_freeCCtx(context);
}
void KvBodyUnpacker::Free::operator()(ZSTD_DCtx_s* context) const {
  ::ZSTD_freeDCtx(context);
}

KvPackedBody KvBodyPacker::pack(std::span<const std::byte> body, KvBodyForm form, KvBodyCounts& counts) {
  if (form == KvBodyForm::plain || body.size() < kShortest) return {KvBodyForm::plain, body};
  const auto begin = std::chrono::steady_clock::now();
  if (context_ == nullptr) context_.reset(::ZSTD_createCCtx());
  LADDER_CHECK(context_ != nullptr, "no memory for zstd");
  std::span<const std::byte> from = body;
  if (form != KvBodyForm::zstd) {
    planes_.resize(body.size());
    form == KvBodyForm::zstd_of_2_bytes ? split<uint16_t>(body, planes_) : split<uint32_t>(body, planes_);
    from = planes_;
  }
  packed_.resize(body.size() - 1);  // where it needs more, it is no shorter, and zstd says so
  // Each plane by itself, so that none has another's code; zstd reads what lies behind each other as one.
  const size_t num_planes = static_cast<size_t>(form), plane = from.size() / num_planes;
  size_t size = 0;
  bool is_shorter = true;
  for (size_t i = 0; i < num_planes && is_shorter; ++i) {
    const auto bytes = i + 1 < num_planes ? from.subspan(i * plane, plane) : from.subspan(i * plane);
    const size_t added = ::ZSTD_compressCCtx(context_.get(), &packed_[size], packed_.size() - size,
                                             bytes.data(), bytes.size(), kLevel);
    is_shorter = ::ZSTD_isError(added) == 0 && size + added < packed_.size();
    if (is_shorter) size += added;
  }
  const KvPackedBody result =
      is_shorter ? KvPackedBody{form, std::span(packed_).first(size)} : KvPackedBody{KvBodyForm::plain, body};
  counts += {static_cast<int64_t>(body.size()), static_cast<int64_t>(result.bytes.size()),
             std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()};
  return result;
}

void KvBodyUnpacker::unpack(KvBodyForm form, std::span<const std::byte> packed, std::span<std::byte> body) {
  if (context_ == nullptr) context_.reset(::ZSTD_createDCtx());
  LADDER_CHECK(context_ != nullptr, "no memory for zstd");
  std::span<std::byte> to = body;
  if (form != KvBodyForm::zstd) {
    planes_.resize(body.size());
    to = planes_;
  }
  const size_t size =
      ::ZSTD_decompressDCtx(context_.get(), to.data(), to.size(), packed.data(), packed.size());
  if (::ZSTD_isError(size) != 0 || size != body.size())
    throw KvChannelError(fmt::format("{} bytes are not the {} of their message, shortened: {}", packed.size(),
                                     body.size(),
                                     ::ZSTD_isError(size) != 0 ? ::ZSTD_getErrorName(size) : "fewer"));
  if (form == KvBodyForm::zstd_of_2_bytes) join<uint16_t>(planes_, body);
  if (form == KvBodyForm::zstd_of_4_bytes) join<uint32_t>(planes_, body);
}

}  // namespace ladder

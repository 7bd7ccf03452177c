#include "step1_layers/core/arena.h"

#include <algorithm>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {
constexpr int64_t kAlignment = 256;
constexpr int64_t kMinChunk = int64_t{1} << 20;
}  // namespace

Tensor Arena::take(const Shape& shape, DType dtype) {
  const int64_t bytes = std::max<int64_t>(shape.numel() * dtype_size(dtype), 1);
  const int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  while (chunk_ < chunks_.size() && offset_ + rounded > chunks_[chunk_].size) {
    ++chunk_;
    offset_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    add_chunk(rounded);
    offset_ = 0;
  }
  auto address = reinterpret_cast<uintptr_t>(chunks_[chunk_].memory.get());
  address = (address + kAlignment - 1) / kAlignment * kAlignment + static_cast<uintptr_t>(offset_);
  offset_ += rounded;
  peak_bytes_ = std::max(peak_bytes_, used_bytes());
  return Tensor::wrap(reinterpret_cast<void*>(address), shape, dtype, device_);
}

void Arena::add_chunk(int64_t bytes) {
  LADDER_CHECK(!frozen_, "the scratch memory was sized by the warm-up run and cannot grow by {} bytes",
               bytes);
  const int64_t size = std::max(bytes, kMinChunk);
  chunks_.push_back({device_allocate(device_, size + kAlignment), size});
}

void Arena::reserve(int64_t bytes) {
  const int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  for (const Chunk& chunk : chunks_)
    if (chunk.size >= rounded) return;
  add_chunk(rounded);
}

int64_t Arena::used_bytes() const {
  int64_t bytes = offset_;
  for (size_t i = 0; i < chunk_; ++i) bytes += chunks_[i].size;
  return bytes;
}

int64_t Arena::reserved_bytes() const {
  int64_t bytes = 0;
  for (const Chunk& chunk : chunks_) bytes += chunk.size;
  return bytes;
}

}  // namespace ladder

#include "step4_runner/kv_cache_piece.h"

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

int64_t round_up(int64_t bytes, int64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

int64_t bytes_of(const Shape& shape, DType dtype) {
  int64_t bytes = 0;
  LADDER_CHECK(!__builtin_mul_overflow(shape.numel(), dtype_size(dtype), &bytes), "{}{} is too large",
               dtype_name(dtype), shape.str());
  return bytes;
}

}  // namespace

int64_t kv_piece_bytes(std::span<const KvCacheSpec> specs, int64_t num_blocks, int64_t block_size) {
  int64_t size = 0;
  for (const KvCacheSpec& spec : specs)
    make_kv_cache(spec, num_blocks, block_size, [&](const Shape& shape, DType dtype) {
      size += round_up(bytes_of(shape, dtype), kKvAlignment);
      return Tensor();
    });
  return round_up(size, kKvPieceBlock);
}

std::vector<KvCacheView> kv_caches_in(const std::shared_ptr<void>& memory, int64_t size,
                                      std::span<const KvCacheSpec> specs, int64_t num_blocks,
                                      int64_t block_size, Device device) {
  int64_t used = 0;
  std::vector<KvCacheView> caches;
  for (const KvCacheSpec& spec : specs)
    caches.push_back(make_kv_cache(spec, num_blocks, block_size, [&](const Shape& shape, DType dtype) {
      const int64_t bytes = bytes_of(shape, dtype);
      LADDER_CHECK(bytes <= size - used,
                   "keys and values: a layer's {}{} of {} bytes does not fit into the {} that are left of {}",
                   dtype_name(dtype), shape.str(), bytes, size - used, size);
      const Tensor tensor =
          Tensor::wrap(static_cast<char*>(memory.get()) + used, shape, dtype, device, memory);
      used = std::min(size, used + round_up(bytes, kKvAlignment));
      return tensor;
    }));
  return caches;
}

}  // namespace ladder

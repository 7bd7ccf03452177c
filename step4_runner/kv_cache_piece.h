#pragma once
// All caches of a rank in one piece of memory: layer behind layer, so that who knows what is kept finds it there. A GPU's lie so
// from the start, in whole blocks of the driver's: then one handle tells another process of all of them, and of nothing else.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "step1_layers/attention/kv_cache.h"

namespace ladder {

inline constexpr int64_t kKvAlignment = 256;  // of each tensor, as cudaMalloc has it
inline constexpr int64_t kKvPieceBlock = int64_t{2}
                                         << 20;     // of the driver's memory: smaller allocations share one
inline constexpr int64_t kMostTensorsOfALayer = 4;  // keys, values, and the scales of both

// Bytes of the piece: a multiple of kKvPieceBlock.
int64_t kv_piece_bytes(std::span<const KvCacheSpec> specs, int64_t num_blocks, int64_t block_size);

// One view per layer, as allocate_kv_caches() has them, in memory that lives as long as one of them. Error: they need more than
// its `size` bytes.
std::vector<KvCacheView> kv_caches_in(const std::shared_ptr<void>& memory, int64_t size,
                                      std::span<const KvCacheSpec> specs, int64_t num_blocks,
                                      int64_t block_size, Device device);

// What a layer keeps: make(shape, dtype) gives each of its tensors, in this order: k, v, k_scales, v_scales.
template <class Make>
KvCacheView make_kv_cache(const KvCacheSpec& spec, int64_t num_blocks, int64_t block_size, const Make& make) {
  const bool in_codes = spec.kept_as != KvCacheDType::automatic;
  const auto of_heads = [&](int64_t count, DType dtype) {
    return make(Shape{num_blocks, block_size, spec.num_kv_heads, count}, dtype);
  };
  const auto values = [&](int64_t dim) {
    return in_codes ? of_heads(kv_code_bytes(spec.kept_as, dim), DType::u8) : of_heads(dim, spec.dtype);
  };
  KvCacheView cache;
  cache.kept_as = spec.kept_as;
  cache.k = values(spec.k_dim);
  cache.v = values(spec.v_dim);
  if (!in_codes) return cache;
  cache.k_scales = of_heads(kKvScales, DType::f32);
  cache.v_scales = of_heads(kKvScales, DType::f32);
  return cache;
}

}  // namespace ladder

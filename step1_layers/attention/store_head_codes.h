#pragma once
// What store_kv and qk_norm_rope_store do with a head where the cache keeps codes.
#include <cstdint>
#include <vector>

#include "step1_layers/attention/kv_codes.h"

namespace ladder {

// x [dim], one head of one token, into `slot` of `codes` and `scales`: a cache's k and k_scales, or v and v_scales. `values` is
// scratch.
template <class T>
void store_head_codes(const KvCacheView& cache, const Tensor& codes, const Tensor& scales, int64_t slot,
                      int64_t head, const T* x, int64_t dim, std::vector<float>& values) {
  const int64_t block = slot / cache.block_size(), offset = slot % cache.block_size();
  values.resize(static_cast<size_t>(dim));
  for (int64_t i = 0; i < dim; ++i) values[static_cast<size_t>(i)] = static_cast<float>(x[i]);
  quantize_kv(
      cache.kept_as, values.data(), dim,
      codes.data<uint8_t>() + block * codes.stride(0) + offset * codes.stride(1) + head * codes.stride(2),
      scales.data<float>() + block * scales.stride(0) + offset * scales.stride(1) + head * scales.stride(2));
}

}  // namespace ladder

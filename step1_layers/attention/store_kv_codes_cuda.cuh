#pragma once
// What the kernels that store codes share: where a token's keys and values come from and their codes go to.
#include "step1_layers/attention/kv_codes_cuda.cuh"
#include "step1_layers/attention/store_kv_cuda.cuh"

namespace ladder {

// One side, keys or values. Scales are contiguous: a pair for every slot and head.
template <class T>
struct CodesSide {
  const T* from;
  uint8_t* codes;
  float2* scales;
  int64_t token, head, codes_block, codes_slot, codes_head, dim;

  __device__ const T* source(int64_t t, int64_t h) const { return from + t * token + h * head; }
  __device__ uint8_t* codes_of(int64_t slot, int64_t block_size, int64_t h) const {
    const auto s = static_cast<uint32_t>(slot), size = static_cast<uint32_t>(block_size);
    return codes + s / size * codes_block + s % size * codes_slot + h * codes_head;
  }
  __device__ float2* scales_of(int64_t slot, int64_t heads, int64_t h) const {
    return scales + slot * heads + h;
  }
};

template <class T>
CodesSide<T> codes_side(const Tensor& from, const Tensor& codes, const Tensor& scales) {
  return {.from = cuda_data<T>(from),
          .codes = cuda_data<uint8_t>(codes),
          .scales = cuda_data<float2>(scales),
          .token = from.stride(0),
          .head = from.stride(1),
          .codes_block = codes.stride(0),
          .codes_slot = codes.stride(1),
          .codes_head = codes.stride(2),
          .dim = from.dim(2)};
}

template <class T>
struct StoreCodes {
  CodesSide<T> k, v;
  const int64_t* slots;
  int64_t tokens, heads, block_size;
  KvCacheDType kept_as;
};

template <class T>
StoreCodes<T> store_codes(const StoreKvArgs& args) {
  const KvCacheView& cache = args.cache;
  return {.k = codes_side<T>(args.k, cache.k, cache.k_scales),
          .v = codes_side<T>(args.v, cache.v, cache.v_scales),
          .slots = cuda_data<int64_t>(args.slot_mapping),
          .tokens = args.slot_mapping.dim(0),
          .heads = args.k.dim(1),
          .block_size = cache.block_size(),
          .kept_as = cache.kept_as};
}

}  // namespace ladder

#pragma once
// What the kernels that write the KV cache share: where a token's keys and values come from and go to.
#include "step1_layers/attention/store_kv.h"
#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/core/error.h"

namespace ladder {

// One side, keys or values, of a store.
template <class T>
struct Side {
  const T* from;
  T* cache;
  int64_t token, head, cache_block, cache_slot, cache_head, dim;

  __device__ const T* source(int64_t t, int64_t h) const { return from + t * token + h * head; }
  __device__ T* target(int64_t slot, int64_t block_size, int64_t h) const {
    // Divided in 32 bits, which takes a fifth of the instructions.
    const auto s = static_cast<uint32_t>(slot), size = static_cast<uint32_t>(block_size);
    return cache + s / size * cache_block + s % size * cache_slot + h * cache_head;
  }
};

template <class T>
Side<T> side(const Tensor& from, const Tensor& cache) {
  return {.from = cuda_data<T>(from),
          .cache = cuda_data<T>(cache),
          .token = from.stride(0),
          .head = from.stride(1),
          .cache_block = cache.stride(0),
          .cache_slot = cache.stride(1),
          .cache_head = cache.stride(2),
          .dim = from.dim(2)};
}

template <class T>
struct Store {
  Side<T> k, v;
  const int64_t* slots;
  int64_t tokens, heads, block_size;
};

template <class T>
Store<T> store(const StoreKvArgs& args) {
  return {.k = side<T>(args.k, args.cache.k),
          .v = side<T>(args.v, args.cache.v),
          .slots = cuda_data<int64_t>(args.slot_mapping),
          .tokens = args.slot_mapping.dim(0),
          .heads = args.k.dim(1),
          .block_size = args.cache.block_size()};
}

inline void check_slots(const KvCacheView& cache) {
  LADDER_CHECK(cache.num_blocks() * cache.block_size() < int64_t{1} << 32,
               "store_kv: a cache of {} blocks of {} slots has more than 2^32", cache.num_blocks(),
               cache.block_size());
}

}  // namespace ladder

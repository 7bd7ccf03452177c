#pragma once
// For kernels that do little more than move packs: the elements as floats and back, and accesses that do not
// ask to stay in a cache.
#include "step1_layers/core/cuda_kernel.cuh"

namespace ladder {

// For what is read and written once by a kernel of many tokens: the lines leave the caches first, and those
// written go to memory early instead of in a crowd.
template <class T>
__device__ Pack<T> load_pack_once(const T* from) {
  const uint4 words = __ldcs(reinterpret_cast<const uint4*>(from));
  return *reinterpret_cast<const Pack<T>*>(&words);
}
template <class T>
__device__ void store_pack_once(T* to, const Pack<T>& pack) {
  __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&pack));
}

// On whole words: taking 16-bit elements out one by one costs two instructions each.
template <class T>
__device__ void to_floats(const Pack<T>& pack, float (&x)[Pack<T>::kSize]) {
  const uint32_t* words = reinterpret_cast<const uint32_t*>(&pack);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      x[i] = pack.value[i];
    } else if constexpr (std::is_same_v<T, __half>) {
      const float2 two = __half22float2(*reinterpret_cast<const __half2*>(words + i));
      x[2 * i] = two.x, x[2 * i + 1] = two.y;
    } else {  // bf16 is the upper half of a float
      x[2 * i] = __uint_as_float(words[i] << 16);
      x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
}

template <class T>
__device__ Pack<T> from_floats(const float (&x)[Pack<T>::kSize]) {
  Pack<T> pack;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<T, float>)
      pack.value[i] = x[i];
    else if constexpr (std::is_same_v<T, __half>)
      reinterpret_cast<__half2*>(&pack)[i] = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
    else
      reinterpret_cast<__nv_bfloat162*>(&pack)[i] = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
  }
  return pack;
}

}  // namespace ladder

#pragma once
// Reading rows of logits, four values at a time.
#include "step1_layers/core/cuda_kernel.cuh"

namespace ladder {

inline constexpr int kGroup = 4;  // values of one 16-byte load, and tokens of one Philox block

// The larger one, NaN where one is NaN: still one instruction, so that a row with a NaN is found in passing.
__device__ inline float max_or_nan(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float largest;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(largest) : "f"(a), "f"(b));
  return largest;
#else
  return isnan(a) || isnan(b) ? NAN : fmaxf(a, b);
#endif
}
__device__ inline float max_or_nan(const float (&x)[kGroup]) {
  return max_or_nan(max_or_nan(x[0], x[1]), max_or_nan(x[2], x[3]));
}
// Over all threads of a block of whole warps; every thread gets the result.
__device__ inline float block_max_or_nan(float x) {
  return block_reduce(x, -INFINITY, [](float a, float b) { return max_or_nan(a, b); });
}

__device__ inline void load_four(const float* x, float (&values)[kGroup]) {
  const float4 pack = *reinterpret_cast<const float4*>(x);
  values[0] = pack.x, values[1] = pack.y, values[2] = pack.z, values[3] = pack.w;
}
// The same for rows that are read once: they leave L1 alone. Nothing may write the row while the kernel runs.
__device__ inline void stream_four(const float* x, float (&values)[kGroup]) {
  asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
               : "l"(x));
}
// Four adjacent values of a row from `first` on, -inf from `end` on: one instruction where the row stands at
// a multiple of 16 bytes.
__device__ inline void load_group(const float* x, int64_t first, int64_t end, bool aligned,
                                  float (&values)[kGroup]) {
  if (aligned && first + kGroup <= end) {
    load_four(x + first, values);
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) values[i] = first + i < end ? x[first + i] : -INFINITY;
  }
}
__device__ inline bool is_aligned(const float* x) {
  return reinterpret_cast<uintptr_t>(x) % 16 == 0;
}

// The groups of four from warp_first on, kStep values apart; -inf past the end.
template <int threads, int unroll>
__device__ void load_batch(const float* x, int64_t warp_first, int64_t end, bool aligned,
                           float (&values)[unroll][kGroup]) {
  constexpr int64_t kStep = threads * kGroup;
  const int64_t first = warp_first + threadIdx.x % kWarp * kGroup;
  if (aligned && warp_first + (unroll - 1) * kStep + kWarp * kGroup <= end) {
#pragma unroll
    for (int j = 0; j < unroll; ++j) stream_four(x + first + j * kStep, values[j]);
  } else {
#pragma unroll
    for (int j = 0; j < unroll; ++j) load_group(x, first + j * kStep, end, aligned, values[j]);
  }
}

// Calls fn(j, first, values) for the groups of four of values [begin, end) of a row, begin a multiple of
// four, in a block of `threads`; past the end the values are -inf. All lanes of a warp call together, and
// `unroll` loads per thread, j = 0, 1, ..., are issued before the first is used.
template <int threads, int unroll, class Fn>
__device__ void for_each_group(const float* x, int64_t begin, int64_t end, Fn&& fn) {
  constexpr int64_t kStep = threads * kGroup;
  const bool aligned = is_aligned(x);
  const int lane = threadIdx.x % kWarp;
  int64_t warp_first = begin + int64_t{threadIdx.x - lane} * kGroup;
  for (; warp_first < end; warp_first += unroll * kStep) {
    float values[unroll][kGroup];
    load_batch<threads>(x, warp_first, end, aligned, values);
#pragma unroll
    for (int j = 0; j < unroll; ++j) fn(j, warp_first + lane * kGroup + j * kStep, values[j]);
  }
}

// For `unroll` groups at a time, threads * kGroup values apart: calls early(first) and then fn(first,
// values), where values[j] is the group at first + j * threads * kGroup, -inf past the end. The values are
// being loaded during early().
template <int threads, int unroll, class Early, class Fn>
__device__ void for_each_batch(const float* x, int64_t begin, int64_t end, Early&& early, Fn&& fn) {
  constexpr int kStep = threads * kGroup, kBatch = unroll * kStep;
  const bool aligned = is_aligned(x);
  const auto count = static_cast<int>(end - begin);
  const int whole = aligned ? count / kBatch : 0;  // batches that need no look at the end
  const float* mine = x + begin + threadIdx.x * kGroup;
  auto first = static_cast<uint32_t>(begin) + threadIdx.x * kGroup;
  float values[unroll][kGroup];
  int batch = 0;
#pragma unroll 1  // without a branch: only then the compiler puts the use of the values after early()
  for (; batch < whole; ++batch, first += kBatch, mine += kBatch) {
#pragma unroll
    for (int j = 0; j < unroll; ++j) stream_four(mine + j * kStep, values[j]);
    early(first);
    fn(first, values);
  }
#pragma unroll 1
  for (; batch * kBatch < count; ++batch, first += kBatch) {
    const int64_t warp_first = begin + (threadIdx.x - threadIdx.x % kWarp) * kGroup;
    load_batch<threads>(x, warp_first + int64_t{batch} * kBatch, end, aligned, values);
    early(first);
    fn(first, values);
  }
}

}  // namespace ladder

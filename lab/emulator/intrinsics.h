#pragma once
// CUDA's built-in functions. Those that meet or access memory tell the emulator where they were called.
#include "lab/emulator/kernel.h"

#define LADDER_HERE __builtin_return_address(0)

LADDER_EMULATOR_FUNCTION inline void __syncthreads() {
  ladder_emulator::barrier(LADDER_HERE);
}
LADDER_EMULATOR_FUNCTION inline int __syncthreads_count(int predicate) {
  return ladder_emulator::barrier_count(predicate != 0, LADDER_HERE);
}
LADDER_EMULATOR_FUNCTION inline int __syncthreads_or(int predicate) {
  return ladder_emulator::barrier_count(predicate != 0, LADDER_HERE) > 0;
}
LADDER_EMULATOR_FUNCTION inline int __syncthreads_and(int predicate) {
  return ladder_emulator::barrier_count(predicate == 0, LADDER_HERE) == 0;
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline unsigned __activemask() {
  return ladder_emulator::lanes_not_ended();
}

#define LADDER_MEET(what, mask, value, lane) \
  ladder_emulator::meet(ladder_emulator::Exchange::what, mask, value, lane, LADDER_HERE)

LADDER_EMULATOR_FUNCTION inline void __syncwarp(unsigned mask = 0xffffffffu) {
  LADDER_MEET(sync, mask, 0, 0);
}
LADDER_EMULATOR_FUNCTION inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return static_cast<unsigned>(LADDER_MEET(ballot, mask, predicate != 0, 0));
}
LADDER_EMULATOR_FUNCTION inline int __any_sync(unsigned mask, int predicate) {
  return LADDER_MEET(any, mask, predicate != 0, 0) != 0;
}
LADDER_EMULATOR_FUNCTION inline int __all_sync(unsigned mask, int predicate) {
  return LADDER_MEET(all, mask, predicate != 0, 0) != 0;
}
template <class T>
LADDER_EMULATOR_FUNCTION unsigned __match_any_sync(unsigned mask, T value) {
  return static_cast<unsigned>(LADDER_MEET(match_any, mask, ladder_emulator::bits_of(value), 0));
}

// A lane outside of [0, width) of its group, or past it, leaves a lane with its own value.
template <class T>
LADDER_EMULATOR_FUNCTION T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = ladder_emulator::current_lane();
  const int from = (lane & ~(width - 1)) + (source & (width - 1));
  return ladder_emulator::of_bits<T>(LADDER_MEET(shuffle, mask, ladder_emulator::bits_of(value), from));
}
template <class T>
LADDER_EMULATOR_FUNCTION T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  const int lane = ladder_emulator::current_lane(), from = lane ^ lanes;
  const bool inside = from < (lane & ~(width - 1)) + width;
  return ladder_emulator::of_bits<T>(
      LADDER_MEET(shuffle, mask, ladder_emulator::bits_of(value), inside ? from : lane));
}
template <class T>
LADDER_EMULATOR_FUNCTION T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32) {
  const int lane = ladder_emulator::current_lane(), from = lane + static_cast<int>(lanes);
  const bool inside = from < (lane & ~(width - 1)) + width;
  return ladder_emulator::of_bits<T>(
      LADDER_MEET(shuffle, mask, ladder_emulator::bits_of(value), inside ? from : lane));
}
template <class T>
LADDER_EMULATOR_FUNCTION T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = 32) {
  const int lane = ladder_emulator::current_lane(), from = lane - static_cast<int>(lanes);
  const bool inside = from >= (lane & ~(width - 1));
  return ladder_emulator::of_bits<T>(
      LADDER_MEET(shuffle, mask, ladder_emulator::bits_of(value), inside ? from : lane));
}

#define LADDER_REDUCTION(name, what, T)                                              \
  LADDER_EMULATOR_FUNCTION inline T name(unsigned mask, T value) {                   \
    return static_cast<T>(LADDER_MEET(what, mask, static_cast<uint64_t>(value), 0)); \
  }
LADDER_REDUCTION(__reduce_add_sync, add, unsigned)
LADDER_REDUCTION(__reduce_min_sync, min, unsigned)
LADDER_REDUCTION(__reduce_max_sync, max, unsigned)
LADDER_REDUCTION(__reduce_and_sync, bit_and, unsigned)
LADDER_REDUCTION(__reduce_or_sync, bit_or, unsigned)
LADDER_REDUCTION(__reduce_xor_sync, bit_xor, unsigned)
LADDER_REDUCTION(__reduce_add_sync, add_signed, int)
LADDER_REDUCTION(__reduce_min_sync, min_signed, int)
LADDER_REDUCTION(__reduce_max_sync, max_signed, int)
#undef LADDER_REDUCTION

// Threads run one after the other between barriers, so plain arithmetic is atomic.
#define LADDER_ATOMIC(name, expression)                                                \
  template <class T>                                                                   \
  LADDER_EMULATOR_FUNCTION T name(T* address, std::type_identity_t<T> value) {         \
    ladder_emulator::atomic_access(address, static_cast<int>(sizeof(T)), LADDER_HERE); \
    const T old = *address;                                                            \
    *address = expression;                                                             \
    return old;                                                                        \
  }
LADDER_ATOMIC(atomicAdd, old + value)
LADDER_ATOMIC(atomicSub, old - value)
LADDER_ATOMIC(atomicMin, value < old ? value : old)
LADDER_ATOMIC(atomicMax, value > old ? value : old)
LADDER_ATOMIC(atomicExch, value)
LADDER_ATOMIC(atomicAnd, old& value)
LADDER_ATOMIC(atomicOr, old | value)
LADDER_ATOMIC(atomicXor, old ^ value)
LADDER_ATOMIC(atomicInc, old >= value ? T{0} : old + 1)
#undef LADDER_ATOMIC
template <class T>
LADDER_EMULATOR_FUNCTION T atomicCAS(T* address, std::type_identity_t<T> expected,
                                     std::type_identity_t<T> value) {
  ladder_emulator::atomic_access(address, static_cast<int>(sizeof(T)), LADDER_HERE);
  const T old = *address;
  if (old == expected) *address = value;
  return old;
}

// Loads and stores with a hint for the caches: the same sectors.
#define LADDER_LOAD(name)                   \
  template <class T>                        \
  __device__ inline T name(const T* from) { \
    return *from;                           \
  }
LADDER_LOAD(__ldg)
LADDER_LOAD(__ldcs)
LADDER_LOAD(__ldca)
LADDER_LOAD(__ldcg)
LADDER_LOAD(__ldlu)
LADDER_LOAD(__ldcv)
#undef LADDER_LOAD
#define LADDER_STORE(name)                      \
  template <class T>                            \
  __device__ inline void name(T* to, T value) { \
    *to = value;                                \
  }
LADDER_STORE(__stcs)
LADDER_STORE(__stcg)
LADDER_STORE(__stwb)
LADDER_STORE(__stwt)
#undef LADDER_STORE

__device__ inline float rsqrtf(float x) {
  return 1.0f / sqrtf(x);
}
__device__ inline float __expf(float x) {
  return expf(x);
}
__device__ inline float __logf(float x) {
  return logf(x);
}
__device__ inline float __fdividef(float x, float y) {
  return x / y;
}
__device__ inline float __frcp_rn(float x) {
  return 1.0f / x;
}
__device__ inline float __fmul_rn(float x, float y) {
  return x * y;
}
__device__ inline float __fadd_rn(float x, float y) {
  return x + y;
}
__device__ inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
__device__ inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
__device__ inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
__device__ inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
__device__ inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
__device__ inline int __clz(int x) {
  return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}
__device__ inline int __ffs(int x) {
  return __builtin_ffs(x);
}
__device__ inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(uint64_t{x} * y >> 32);
}
template <class T>
__device__ constexpr T min(T x, std::type_identity_t<T> y) {
  return y < x ? y : x;
}
template <class T>
__device__ constexpr T max(T x, std::type_identity_t<T> y) {
  return x < y ? y : x;
}

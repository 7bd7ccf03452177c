#pragma once
// What a kernel's source refers to: the words of the language as macros, the thread's place, barriers, what lanes of
// a warp exchange, shared variables, atomics. A kernel's own loads and stores are not here: the compiler calls the
// emulator for each (hooks.cpp).
#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>

#include <bit>
#include <type_traits>

#include "lab/emulator/vectors.h"

#define __global__ __attribute__((noinline))
#define __device__ __attribute__((always_inline))
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define __constant__ static const

// The functions of the emulator are no accesses of the kernel.
#define LADDER_EMULATOR_FUNCTION __attribute__((noinline, no_sanitize_thread))

namespace ladder_emulator {

// Of the thread that runs. Set at every switch (block.cpp).
struct Place {
  uint3 thread_index, block_index;
  dim3 block_size, grid_size;
};
extern Place place;

enum class Exchange {
  shuffle,
  ballot,
  any,
  all,
  add_signed,
  min_signed,
  max_signed,
  add,
  min,
  max,
  bit_and,
  bit_or,
  bit_xor,
  match_any,
  sync
};

// All lanes of the mask meet at an operation of the warp; `value` of each lane, for shuffle the lane to take it from.
uint64_t meet(Exchange what, unsigned mask, uint64_t value, int source_lane, const void* at);
void barrier(const void* at);
// The barrier, and how many threads of the block came with a value other than 0.
int barrier_count(int value, const void* at);
int current_lane();
unsigned lanes_not_ended();  // of the warp
// Announces an access that the compiler does not instrument.
void atomic_access(void* address, int bytes, const void* at);

void declare_shared(void* begin, size_t bytes, const char* name);
void* dynamic_shared_memory(const char* name);

template <class T>
using Same = T;

// A shared variable, zero only for the process's first block: what was not written must not be read. The guards are
// what an index too large meets.
template <class T>
struct Shared {
  static constexpr size_t kGuard = 256;
  alignas(256) char before[kGuard];
  alignas(256) unsigned char value[sizeof(T)];
  char after[kGuard];

  LADDER_EMULATOR_FUNCTION T& of_this_block(const char* name) {
    declare_shared(value, sizeof(T), name);
    return reinterpret_cast<T&>(value);
  }
};

template <class T>
LADDER_EMULATOR_FUNCTION T* dynamic_shared(const char* name) {
  return static_cast<T*>(dynamic_shared_memory(name));
}

template <class T>
uint64_t bits_of(T value) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>,
                "lanes exchange values of up to eight bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <class T>
T of_bits(uint64_t bits) {
  T value;
  memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace ladder_emulator

static constexpr uint3& threadIdx = ladder_emulator::place.thread_index;
static constexpr uint3& blockIdx = ladder_emulator::place.block_index;
static constexpr dim3& blockDim = ladder_emulator::place.block_size;
static constexpr dim3& gridDim = ladder_emulator::place.grid_size;
inline constexpr int warpSize = 32;

#pragma once
// The pieces of the quantized rows_stream (rows_stream_cuda.cuh) in the order in which a warp uses them: its ring of records,
// codes that become mma operands, the sums of a group of columns, the sums of the warps. weight_records.h draws a record.
#include "step1_layers/core/tensor_core.cuh"
#include "step1_layers/core/wgmma.cuh"
#include "step8_advanced/quantization/weight_codes.h"

namespace ladder::records {

inline constexpr int kWarps = 8, kThreads = kWarps * kWarp;
inline constexpr int kTileRows = 16, kBlockColumns = 128;

enum class ScaleBits : uint8_t { f32, bf16, f16 };

template <class T>
struct Product {
  const T *x, *bias;  // bias: nullptr where there is none
  const unsigned char* records;
  void* out;
  bool float_out;
  int m, n, k;
  int64_t x_stride, out_stride;
  int tiles, one_more;                    // of a block, and how many blocks have one more
  int blocks_of_k;                        // records of a tile
  int record_bytes, scales_at, zeros_at;  // zeros_at: 0 where there are none
  ScaleBits scale_bits;
  int slots, sums_at, ring_at;  // bytes of shared memory, from its beginning
  bool sums_in_ring;            // which is empty when they are written
};

// Contiguous bytes from global to shared memory by the copy engine, which tells the barrier.
__device__ inline void copy_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
#ifdef LADDER_WGMMA
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
#endif
}

// Two numbers in every word, of codes as weight_records.h places them. The numbers of a code u are kOffset + u: its bits are put
// into a power of two's mantissa, and what is too much is taken off the sums.
template <class T>
struct NibbleNumbers {
  static constexpr uint32_t kPower = std::is_same_v<T, __half> ? 0x64006400 : 0x43004300;
  static constexpr float kOffset = std::is_same_v<T, __half> ? 1024 : 128;

  __device__ static void unpack(uint32_t word, uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;" : "=r"(a[i]) : "r"(word >> (4 * i)), "n"(kPower));
  }
};

// The operands of mma j of half a record.
template <class T, WeightCodes type>
struct Codes;

template <class T>
struct Codes<T, WeightCodes::int4> {
  static constexpr int kVectors = 1, kPlanes = 1;
  static constexpr bool kHasOffset = true;
  static constexpr float kScale = 1;
  // Taken off the sum per unit of x, in units of the scale, with a zero point of 0.
  static constexpr float kOffset = NibbleNumbers<T>::kOffset;
  static constexpr float kZero = 8;  // where a weight has no zero points

  __device__ static void unpack(const uint32_t* words, int j, int, uint32_t (&a)[4]) {
    NibbleNumbers<T>::unpack(words[j], a);
  }
};

template <class T>
struct Codes<T, WeightCodes::int8> {
  static constexpr int kVectors = 2, kPlanes = 2;  // the second plane counts 16 times
  static constexpr bool kHasOffset = true;
  static constexpr float kScale = 1;
  static constexpr float kOffset = 17 * NibbleNumbers<T>::kOffset;
  static constexpr float kZero = 128;

  __device__ static void unpack(const uint32_t* words, int j, int plane, uint32_t (&a)[4]) {
    NibbleNumbers<T>::unpack(words[4 * plane + j], a);
  }
};

// A code's exponent and mantissa where a larger type has its own: a power of two too small. f16 leaves that to the scale; in bf16
// the numbers would be so small that products vanish.
template <class T>
struct Codes<T, WeightCodes::fp8_e4m3> {
  static constexpr int kVectors = 2, kPlanes = 1;
  static constexpr bool kHasOffset = false;
  static constexpr float kScale = std::is_same_v<T, __half> ? 256 : 1;
  static constexpr float kOffset = 0, kZero = 0;

  // Of the upper byte of either half.
  __device__ static uint32_t numbers(uint32_t bytes) {
    if constexpr (std::is_same_v<T, __half>) {
      return (bytes & 0x80008000) | (bytes >> 1 & 0x3f803f80);
    } else {
      const uint32_t small = (bytes & 0x80008000) | (bytes >> 4 & 0x07f007f0);
      const uint32_t power = 0x7b807b80;  // 2^120
      const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&small),
                                             *reinterpret_cast<const __nv_bfloat162*>(&power));
      return *reinterpret_cast<const uint32_t*>(&product);
    }
  }
  __device__ static void unpack(const uint32_t* words, int j, int, uint32_t (&a)[4]) {
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      a[2 * v] = numbers(words[2 * j + v] << 8);
      a[2 * v + 1] = numbers(words[2 * j + v]);
    }
  }
};

// A warp's records: item i is its i-th record of k, of up to `tiles` tiles. One ring per warp, so that no warp waits for another.
template <int tiles>
struct RecordRing {
  uint32_t barriers, slots_at;  // shared memory, this warp's
  int slot_bytes, slots;
  int next_slot = 0, next_tile, next_block;  // to ask for
  int end_tile;
  int slot = 0;  // to multiply
  uint32_t parity = 0;

  template <class T>
  __device__ RecordRing(const Product<T>& p, const unsigned char* shared, int warp, int first_tile, int last)
      : slots(p.slots), next_tile(first_tile), next_block(warp), end_tile(last) {
    slot_bytes = tiles * p.record_bytes;
    barriers = shared_address(shared) + warp * slots * 8;
    slots_at = shared_address(shared) + p.ring_at + warp * slots * slot_bytes;
    if (threadIdx.x % kWarp == 0)
      for (int s = 0; s < slots; ++s) init_barrier(barriers + s * 8, 1);
#ifdef LADDER_WGMMA
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    __syncwarp();
  }

  // Asks for one item, or for nothing at the end.
  template <class T>
  __device__ void copy_next(const Product<T>& p) {
    if (next_block >= p.blocks_of_k) {
      next_block = threadIdx.x / kWarp;
      next_tile += tiles;
    }
    if (next_tile >= end_tile || next_block >= p.blocks_of_k) return;
    const int lane = threadIdx.x % kWarp, count = min(tiles, end_tile - next_tile);
    const uint32_t barrier = barriers + next_slot * 8;
    if (lane == 0) arrive_and_expect(barrier, count * p.record_bytes);
    if (lane < count)
      copy_bytes(
          slots_at + next_slot * slot_bytes + lane * p.record_bytes,
          p.records + (static_cast<int64_t>(next_tile + lane) * p.blocks_of_k + next_block) * p.record_bytes,
          p.record_bytes, barrier);
    next_block += kWarps;
    next_slot = next_slot + 1 < slots ? next_slot + 1 : 0;
  }

  // Where the next item to multiply lies, when it has come.
  __device__ uint32_t wait() const {
    wait_phase(barriers + slot * 8, parity);
    return slots_at + slot * slot_bytes;
  }
  __device__ void advance() {
    if (++slot == slots) slot = 0, parity ^= 1;
  }
};

template <int bytes>
__device__ uint32_t load_small(uint32_t shared_address) {
  uint32_t value;
  if constexpr (bytes == 4)
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(shared_address) : "memory");
  else
    asm volatile("{.reg .u16 v; ld.shared.u16 v, [%1]; cvt.u32.u16 %0, v;}"
                 : "=r"(value)
                 : "r"(shared_address)
                 : "memory");
  return value;
}

// Of rows g and g + 8, of one group of a record.
template <class T, WeightCodes type>
struct RowScales {
  float scale[2], offset[2];

  __device__ RowScales(const Product<T>& p, uint32_t record, int group) {
    const int g = threadIdx.x % kWarp / 4, at = group * 8 + g;
    if (p.scale_bits == ScaleBits::f32) {
      scale[0] = __uint_as_float(load_small<4>(record + p.scales_at + at * 8));
      scale[1] = __uint_as_float(load_small<4>(record + p.scales_at + at * 8 + 4));
    } else {
      const uint32_t pair = load_small<4>(record + p.scales_at + at * 4);
      if (p.scale_bits == ScaleBits::bf16) {
        scale[0] = __uint_as_float(pair << 16);
        scale[1] = __uint_as_float(pair & 0xffff0000);
      } else {
        const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&pair));
        scale[0] = both.x, scale[1] = both.y;
      }
    }
    if constexpr (Codes<T, type>::kScale != 1)
      for (float& s : scale) s *= Codes<T, type>::kScale;
    if constexpr (Codes<T, type>::kHasOffset) {
      offset[0] = offset[1] = Codes<T, type>::kOffset + Codes<T, type>::kZero;
      if (p.zeros_at != 0) {
        const uint32_t pair = load_small<2>(record + p.zeros_at + at * 2);
        offset[0] = Codes<T, type>::kOffset + static_cast<float>(pair & 0xff);
        offset[1] = Codes<T, type>::kOffset + static_cast<float>(pair >> 8);
      }
    }
  }
};

// The sums of a warp: of the columns since the last group ended, and of all groups before, times their scales.
template <class T, WeightCodes type, int tiles, int octets>
struct WarpProduct {
  using C = Codes<T, type>;
  float total[tiles][octets][4] = {};
  float sum[tiles][C::kPlanes][octets][4];
  float of_x[octets][4];  // each row of x alone, as if a weight were 1

  __device__ void begin_group() {
#pragma unroll
    for (int o = 0; o < octets; ++o)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        of_x[o][i] = 0;
#pragma unroll
        for (int tile = 0; tile < tiles; ++tile)
#pragma unroll
          for (int plane = 0; plane < C::kPlanes; ++plane) sum[tile][plane][o][i] = 0;
      }
  }

  // Columns 32 q to 32 q + 31 of the half whose codes are `words`; x: the lane's eight elements of each octet.
  __device__ void multiply(const uint32_t (&words)[tiles][4 * C::kVectors], const uint4 (&x)[octets], int q) {
    constexpr uint32_t kOne = std::is_same_v<T, __half> ? 0x3c003c00 : 0x3f803f80;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int j = 2 * q + part;
      uint32_t b[octets][2];
#pragma unroll
      for (int o = 0; o < octets; ++o) {
        b[o][0] = part == 0 ? x[o].x : x[o].z;
        b[o][1] = part == 0 ? x[o].y : x[o].w;
      }
      if constexpr (C::kHasOffset)
#pragma unroll
        for (int o = 0; o < octets; ++o) mma_16x8x16<T>(of_x[o], {kOne, kOne, kOne, kOne}, b[o]);
#pragma unroll
      for (int tile = 0; tile < tiles; ++tile)
#pragma unroll
        for (int plane = 0; plane < C::kPlanes; ++plane) {
          uint32_t a[4];
          C::unpack(words[tile], j, plane, a);
#pragma unroll
          for (int o = 0; o < octets; ++o) mma_16x8x16<T>(sum[tile][plane][o], a, b[o]);
        }
    }
  }

  __device__ void end_group(const Product<T>& p, uint32_t records, int group) {
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile) {
      const RowScales<T, type> rows(p, records + tile * p.record_bytes, group);
#pragma unroll
      for (int o = 0; o < octets; ++o)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float value = sum[tile][0][o][i];
          if constexpr (C::kPlanes == 2) value = fmaf(16, sum[tile][1][o][i], value);
          if constexpr (C::kHasOffset) value = fmaf(-rows.offset[i / 2], of_x[o][i], value);
          total[tile][o][i] = fmaf(rows.scale[i / 2], value, total[tile][o][i]);
        }
    }
  }
};

// The totals of all warps in shared memory, float [warp][row of x][row of the weight].
template <int tiles>
struct WarpSums {
  static constexpr int kRows = tiles * kTileRows;
  static constexpr int kStride = kRows + 4;  // 4 more spread a warp's stores over the banks

  float* sums;
  int m;

  template <class Totals>
  __device__ void store(const Totals& total) const {
    const int warp = threadIdx.x / kWarp, g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
    constexpr int octets = std::extent_v<Totals, 1>;
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile)
#pragma unroll
      for (int o = 0; o < octets; ++o)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = o * 8 + 2 * t + i % 2, column = tile * kTileRows + g + i / 2 * 8;
          if (row < m) sums[(warp * m + row) * kStride + column] = total[tile][o][i];
        }
  }
  // Over the warps, in their order.
  __device__ float total(int row, int column) const {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[(w * m + row) * kStride + column];
    return sum;
  }
};

template <class T, WeightCodes type, int tiles, int octets, int groups>
__global__ void __launch_bounds__(kThreads, octets == 1 ? 2 : 1) rows_stream_kernel(Product<T> p) {
  using C = Codes<T, type>;
  extern __shared__ __align__(128) unsigned char shared[];
  allow_next_kernel();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int block = static_cast<int>(blockIdx.x);
  const int begin = block * p.tiles + min(block, p.one_more), end = begin + p.tiles + (block < p.one_more);
  RecordRing<tiles> ring(p, shared, warp, begin, end);
#pragma unroll 1
  for (int s = 0; s < p.slots; ++s) ring.copy_next(p);

  // Rows past the last one are copies of it, which nothing stores.
  const T* x_from[octets];
#pragma unroll
  for (int o = 0; o < octets; ++o) x_from[o] = p.x + min(o * 8 + g, p.m - 1) * p.x_stride + t * 8;
  auto load_half = [&](int column, uint4(&x)[2][octets]) {
#pragma unroll
    for (int q = 0; q < 2; ++q)
#pragma unroll
      for (int o = 0; o < octets; ++o)
        x[q][o] = column + 32 * q + t * 8 < p.k ? *reinterpret_cast<const uint4*>(x_from[o] + column + 32 * q)
                                                : uint4{0, 0, 0, 0};
  };

  wait_for_previous_kernel();
  const WarpSums<tiles> warp_sums{reinterpret_cast<float*>(shared + p.sums_at), p.m};
  for (int first = begin; first < end; first += tiles) {
    WarpProduct<T, type, tiles, octets> product;
    uint4 x[2][2][octets];  // of two halves, one of which is on its way
    load_half(warp * kBlockColumns, x[0]);
#pragma unroll 1
    for (int r = warp; r < p.blocks_of_k; r += kWarps) {
      const uint32_t records = ring.wait();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        load_half(half == 0 ? r * kBlockColumns + 64 : (r + kWarps) * kBlockColumns, x[1 - half]);
        uint32_t words[tiles][4 * C::kVectors];
#pragma unroll
        for (int tile = 0; tile < tiles; ++tile)
#pragma unroll
          for (int v = 0; v < C::kVectors; ++v) {
            const uint4 vector =
                load_shared(records + tile * p.record_bytes + (half * C::kVectors + v) * 512 + lane * 16);
            words[tile][4 * v] = vector.x, words[tile][4 * v + 1] = vector.y;
            words[tile][4 * v + 2] = vector.z, words[tile][4 * v + 3] = vector.w;
          }
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          const int quarter = 2 * half + q;
          if (quarter % (4 / groups) == 0) product.begin_group();
          product.multiply(words, x[half][q], q);
          if ((quarter + 1) % (4 / groups) == 0) product.end_group(p, records, quarter / (4 / groups));
        }
      }
      __syncwarp();  // before the copy engine writes where lanes have read
      ring.advance();
      ring.copy_next(p);
    }
    if (p.sums_in_ring) __syncthreads();
    warp_sums.store(product.total);
    __syncthreads();
    const int rows = min(min(tiles, end - first) * kTileRows, p.n - first * kTileRows);
#pragma unroll 1
    for (int i = threadIdx.x; i < p.m * WarpSums<tiles>::kRows; i += kThreads) {
      const int row = i / WarpSums<tiles>::kRows, column = i % WarpSums<tiles>::kRows;
      if (column >= rows) continue;
      const int j = first * kTileRows + column;
      float sum = warp_sums.total(row, column);
      if (p.bias != nullptr) sum += to_float(p.bias[j]);
      if (p.float_out)
        static_cast<float*>(p.out)[row * p.out_stride + j] = sum;
      else
        static_cast<T*>(p.out)[row * p.out_stride + j] = from_float<T>(sum);
    }
    __syncthreads();
  }
}

}  // namespace ladder::records

#pragma once
// The product for few rows of x as a stream of records (weight_records.h draws one), the sibling of matmul's rows_stream
// (step1_layers/linear/rows_stream.cuh): codes that become mma operands, a warp's share, the ring that records come through, the sums
// of a warp, those of all warps, the kernel.
#include "step1_layers/core/cluster.cuh"
#include "step1_layers/core/tensor_core.cuh"
#include "step8_advanced/quantization/weight_codes.h"

namespace ladder::records {

inline constexpr int kWarps = 8, kThreads = kWarps * kWarp;
inline constexpr int kTileRows = 16, kBlockColumns = 128;

template <class T>
struct Product {
  const T *x, *bias;  // bias: nullptr where there is none
  const unsigned char* records;
  void* out;
  bool float_out;
  int m, n, k;
  int64_t x_stride, out_stride;
  int64_t tile_stride;  // bytes from a tile's records to those of the next
  float unit;           // of the scales
  int split;            // blocks that share a part of the tiles, each with columns of its own: a cluster
  int tiles, one_more;  // of such a part, and how many parts have one more
  int blocks_of_k;      // records of a tile
  int slots, partner_at, ring_at;  // bytes of shared memory, from its beginning, where the sums are
  bool sums_in_ring;               // which is empty when they are written
};

// So many bytes from global to shared memory, without waiting.
template <int bytes>
__device__ void copy_small_async(uint32_t shared_address, const void* from) {
  LADDER_SM80_ASM("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address), "l"(from), "n"(bytes)
                  : "memory");
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

// D = A * B, as mma_16x8x16 (tensor_core.cuh).
template <class T>
__device__ void mma_from_zero(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, __half>)
    LADDER_SM80_ASM(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
  else
    LADDER_SM80_ASM(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
}

// The tiles of a block's part of the weight, in groups that differ by one tile at most, and the columns of one of its warps:
// blocks first_r, first_r + stride, ... of k.
struct Share {
  int begin, groups, of_group, one_more;  // tiles of a group, and how many groups have one more
  int first_r, stride;

  template <class T>
  __device__ Share(const Product<T>& p, int tiles) {
    const int part = static_cast<int>(blockIdx.x) / p.split, rank = static_cast<int>(blockIdx.x) % p.split;
    begin = part * p.tiles + min(part, p.one_more);
    const int count = p.tiles + (part < p.one_more);
    groups = ceil_div(count, tiles), of_group = count / groups, one_more = count % groups;
    first_r = rank * kWarps + static_cast<int>(threadIdx.x) / kWarp;
    stride = kWarps * p.split;
  }
  __device__ int first_tile(int group) const { return begin + group * of_group + min(group, one_more); }
  __device__ int tiles(int group) const { return of_group + (group < one_more); }
};

// The scales of rows g and g + 8, of one group of a record, and their zero points, as weight_records.h has them.
template <WeightCodes type, bool zeros>
struct RowPair {
  static constexpr bool kHalves = type == WeightCodes::int4;
  static constexpr int kBytes = (kHalves ? 4 : 8) * (zeros ? 2 : 1);
  float scale[2];
  float zero[2];

  __device__ explicit RowPair(uint32_t shared_address) {
    uint32_t pair[4];
    if constexpr (kBytes == 4)
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(pair[0]) : "r"(shared_address) : "memory");
    else if constexpr (kBytes == 8)
      asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];"
                   : "=r"(pair[0]), "=r"(pair[1])
                   : "r"(shared_address)
                   : "memory");
    else
      asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(pair[0]), "=r"(pair[1]), "=r"(pair[2]), "=r"(pair[3])
                   : "r"(shared_address)
                   : "memory");
    if constexpr (kHalves) {
      const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&pair[0]));
      scale[0] = both.x, scale[1] = both.y;
    } else {
      scale[0] = __uint_as_float(pair[0]), scale[1] = __uint_as_float(pair[1]);
    }
    if constexpr (zeros) {
      const uint32_t codes = pair[kHalves ? 1 : 2];
      zero[0] = static_cast<float>(codes & 0xff), zero[1] = static_cast<float>(codes >> 8 & 0xff);
    }
  }
};

// What a kernel is made for.
template <class Number, WeightCodes codes_type, int row_octets, int groups_of_record, bool zero_points,
          int tiles_of_group>
struct Kind {
  using T = Number;
  using C = Codes<T, codes_type>;
  using Rows = RowPair<codes_type, zero_points>;
  static constexpr WeightCodes type = codes_type;
  static constexpr int octets = row_octets;  // of rows of x
  static constexpr int groups = groups_of_record;
  static constexpr bool zeros = zero_points;
  static constexpr int tiles = tiles_of_group;  // of a group, at most

  // A record, and its place in a slot, where each thread has what it copies and multiplies itself.
  static constexpr int codes_bytes = 2 * C::kVectors * kWarp * 16,
                       record_bytes = codes_bytes + groups * 8 * Rows::kBytes;
  static constexpr int tile_bytes = kThreads * (2 * C::kVectors * 16 + groups * Rows::kBytes);
  static constexpr int slot_bytes = tiles * tile_bytes;
};

// The ring of slots that records come through: a slot has a record per warp and tile of a group. A thread copies the bytes that it
// will multiply itself, so no thread waits for another.
template <class K, class Share>
struct RecordRing {
  const unsigned char* from;  // this lane's codes, of the group's first tile
  int group, r, slot = 0;     // to ask for
  uint32_t codes_at;          // of the thread, in slot 0

  template <class P>
  __device__ RecordRing(const P& p, const Share& share, const unsigned char* shared)
      : group(share.first_r < p.blocks_of_k ? 0 : share.groups), r(share.first_r) {
    codes_at = shared_address(shared) + p.ring_at + threadIdx.x * 16;
    go_to_group(p, share);
  }
  template <class P>
  __device__ void go_to_group(const P& p, const Share& share) {
    from = p.records + share.first_tile(group) * p.tile_stride + static_cast<int64_t>(r) * K::record_bytes;
  }
  __device__ static uint32_t rows_at() {  // of a tile, from the thread's codes
    return 2 * K::C::kVectors * kThreads * 16 - threadIdx.x * 16 + threadIdx.x * K::Rows::kBytes;
  }

  // Asks for one slot, or for nothing at the end.
  template <class P>
  __device__ void copy_next(const P& p, const Share& share) {
    if (group < share.groups) {
      const int lane = threadIdx.x % kWarp, count = share.tiles(group);
      const uint32_t to = codes_at + slot * K::slot_bytes;
#pragma unroll
      for (int tile = 0; tile < K::tiles; ++tile) {
        if (tile >= count) break;
        const unsigned char* record = from + tile * p.tile_stride;
#pragma unroll
        for (int v = 0; v < 2 * K::C::kVectors; ++v)
          copy_of_line_async(to + tile * K::tile_bytes + v * kThreads * 16, record + (v * kWarp + lane) * 16,
                             true);
#pragma unroll
        for (int i = 0; i < K::groups; ++i)
          copy_small_async<K::Rows::kBytes>(
              to + tile * K::tile_bytes + rows_at() + i * kThreads * K::Rows::kBytes,
              record + K::codes_bytes + (i * 8 + lane / 4) * K::Rows::kBytes);
      }
      slot = slot + 1 < p.slots ? slot + 1 : 0;
      r += share.stride;
      from += share.stride * K::record_bytes;
      if (r >= p.blocks_of_k) {
        r = share.first_r, ++group;
        go_to_group(p, share);
      }
    }
    commit_copies();
  }
};

// Waits until at most `pending` groups of copies are in flight.
__device__ inline void wait_some_copies(int pending) {
  switch (pending) {
    case 0:
      return wait_copies<0>();
    case 1:
      return wait_copies<1>();
    case 2:
      return wait_copies<2>();
    case 3:
      return wait_copies<3>();
    default:
      return wait_copies<4>();
  }
}

// The lane's columns of a block of k, of up to 16 rows of x: of each 32 columns a pack of 8.
template <int octets>
struct XColumns {
  uint4 pack[4][octets];

  // Registers 2 part and 2 part + 1 of a pack: operand b of an mma.
  __device__ void operand(int quarter, int part, int o, uint32_t (&b)[2]) const {
    const uint4& x = pack[quarter][o];
    b[0] = part == 0 ? x.x : x.z;
    b[1] = part == 0 ? x.y : x.w;
  }
};

// The sums of a warp: over the columns since the last group of columns ended, and over all before, times their scales.
template <class K>
struct WarpProduct {
  using T = typename K::T;
  using C = typename K::C;
  float total[K::tiles][K::octets][4] = {};
  float sum[K::tiles][C::kPlanes][K::octets][4];
  float of_x[K::octets]
            [4];  // each row of x alone, as if a weight were 1: what is taken off for the codes' offsets

  // A slot's records times the columns of x.
  __device__ void multiply(uint32_t slot, const XColumns<K::octets>& x) {
    constexpr uint32_t kOne = std::is_same_v<T, __half> ? 0x3c003c00 : 0x3f803f80;
    constexpr int kMmaOfGroup = 8 / K::groups;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t words[K::tiles][4 * C::kVectors];
#pragma unroll
      for (int tile = 0; tile < K::tiles; ++tile)
#pragma unroll
        for (int v = 0; v < C::kVectors; ++v) {
          const uint4 vector =
              load_shared(slot + tile * K::tile_bytes + (half * C::kVectors + v) * kThreads * 16);
          words[tile][4 * v] = vector.x, words[tile][4 * v + 1] = vector.y;
          words[tile][4 * v + 2] = vector.z, words[tile][4 * v + 3] = vector.w;
        }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int index = 4 * half + j;
        const bool first = index % kMmaOfGroup == 0;
        uint32_t b[K::octets][2];
#pragma unroll
        for (int o = 0; o < K::octets; ++o) x.operand(index / 2, j % 2, o, b[o]);
        if constexpr (C::kHasOffset)
#pragma unroll
          for (int o = 0; o < K::octets; ++o) add(of_x[o], {kOne, kOne, kOne, kOne}, b[o], first);
#pragma unroll
        for (int tile = 0; tile < K::tiles; ++tile)
#pragma unroll
          for (int plane = 0; plane < C::kPlanes; ++plane) {
            uint32_t a[4];
            C::unpack(words[tile], j, plane, a);
#pragma unroll
            for (int o = 0; o < K::octets; ++o) add(sum[tile][plane][o], a, b[o], first);
          }
        if ((index + 1) % kMmaOfGroup == 0) end_group(slot, index / kMmaOfGroup);
      }
    }
  }

 private:
  __device__ static void add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], bool first) {
    if (first)
      mma_from_zero<T>(d, a, b);
    else
      mma_16x8x16<T>(d, a, b);
  }

  __device__ void end_group(uint32_t slot, int group) {
#pragma unroll
    for (int tile = 0; tile < K::tiles; ++tile) {
      const typename K::Rows rows(slot + tile * K::tile_bytes + RecordRing<K, int>::rows_at() +
                                  group * kThreads * K::Rows::kBytes);
#pragma unroll
      for (int o = 0; o < K::octets; ++o)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float value = sum[tile][0][o][i];
          if constexpr (C::kPlanes == 2) value = fmaf(16, sum[tile][1][o][i], value);
          if constexpr (K::zeros)
            value = fmaf(-(C::kOffset + rows.zero[i / 2]), of_x[o][i], value);
          else if constexpr (C::kHasOffset)
            value = fmaf(-(C::kOffset + C::kZero), of_x[o][i], value);
          total[tile][o][i] = fmaf(rows.scale[i / 2], value, total[tile][o][i]);
        }
    }
  }
};

// The totals of all warps in shared memory, float [warp][row of x][row of the weight].
template <class K>
struct WarpSums {
  static constexpr int kRows = K::tiles * kTileRows;
  static constexpr int kStride = kRows + 4;  // 4 more spread a warp's stores over the banks

  float* sums;
  int m;

  __host__ __device__ static constexpr int size(int rows) { return kWarps * rows * kStride; }

  __device__ void store(const float (&total)[K::tiles][K::octets][4]) const {
    const int warp = threadIdx.x / kWarp, g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int tile = 0; tile < K::tiles; ++tile)
#pragma unroll
      for (int o = 0; o < K::octets; ++o)
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

// rows_stream: x [m, k] in bf16 or f16, up to 16 rows of whole 16-byte packs; weight [n, k] in records; out [m, n] in x's dtype or
// f32. A block per multiprocessor, or a cluster of two, has an even share of the weight's tiles, and goes through them group by group;
// the eight warps of a block share the columns. The simple version:
//
//   for each group of tiles of this block:
//     for each record's columns of this warp:
//       for each tile:  sum = codes as numbers * x           mma
//                       total += scale * (sum - offset * sum of x)
//     add the warps' totals, write the group's columns
//
// What makes it fast, and what was seen on the way (8192 x 8192, groups of 128, one row of x, an H200):
// - no zero point is taken off a code: the sums of x come from mma by ones, a quarter of the mma more and four of eleven instructions
//   a word less;
// - four tiles in turn, as an mma waits for the one before it: 15.9 us with a tile at a time, 12.5 with four;
// - copies of a thread's own bytes instead of the copy engine's, whose barriers and uniform registers were some 60 of 160
//   instructions of a record, and x asked for a whole record ahead instead of half of one: 11.3 us.
template <class K>
__global__ void __launch_bounds__(kThreads, K::octets == 1 ? 2 : 1)
    rows_stream_kernel(Product<typename K::T> p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using T = typename K::T;
  constexpr int octets = K::octets;
  extern __shared__ __align__(128) unsigned char shared[];
  allow_next_kernel();
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const Share share(p, K::tiles);
  RecordRing<K, Share> ring(p, share, shared);
#pragma unroll 1
  for (int s = 0; s < p.slots; ++s) ring.copy_next(p, share);
  if (p.split > 1) cluster_sync();  // the other block's shared memory may be written from now on

  // Rows past the last one are copies of it, which nothing stores.
  const T* x_from[octets];
#pragma unroll
  for (int o = 0; o < octets; ++o) x_from[o] = p.x + min(o * 8 + g, p.m - 1) * p.x_stride + t * 8;
  const auto load_x = [&](int r, XColumns<octets>& x) {
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      const int column = r * kBlockColumns + 32 * quarter;
#pragma unroll
      for (int o = 0; o < octets; ++o)
        x.pack[quarter][o] =
            column + t * 8 < p.k ? *reinterpret_cast<const uint4*>(x_from[o] + column) : uint4{0, 0, 0, 0};
    }
  };

  wait_for_previous_kernel();
  float* const partner = reinterpret_cast<float*>(shared + p.partner_at);  // sums of rank 1, in rank 0
  XColumns<octets> next;
  load_x(share.first_r, next);
  int slot = 0;
#pragma unroll 1
  for (int group = 0; group < share.groups; ++group) {
    // Two places take turns, so that the next group's sums need not wait until these are read.
    const WarpSums<K> warp_sums{reinterpret_cast<float*>(shared) + group % 2 * WarpSums<K>::size(p.m), p.m};
    const int first = share.first_tile(group) * kTileRows,
              rows = min(share.tiles(group) * kTileRows, p.n - first);
    WarpProduct<K> product;
#pragma unroll 1
    for (int r = share.first_r; r < p.blocks_of_k; r += share.stride) {
      const XColumns<octets> x = next;
      load_x(r + share.stride < p.blocks_of_k ? r + share.stride : share.first_r, next);
      wait_some_copies(p.slots - 1);
      product.multiply(ring.codes_at + slot * K::slot_bytes, x);
      ring.copy_next(p, share);
      slot = slot + 1 < p.slots ? slot + 1 : 0;
    }
    if (p.sums_in_ring) __syncthreads();
    warp_sums.store(product.total);
    __syncthreads();
    const int rank = static_cast<int>(blockIdx.x) % p.split;
    if (rank > 0)
      for (int i = threadIdx.x; i < p.m * WarpSums<K>::kRows; i += kThreads) {
        const int row = i / WarpSums<K>::kRows, column = i % WarpSums<K>::kRows;
        if (column < rows) *in_block(&partner[i], 0) = warp_sums.total(row, column);
      }
    if (p.split > 1) cluster_sync();
    if (rank == 0)
#pragma unroll 1
      for (int i = threadIdx.x; i < p.m * WarpSums<K>::kRows; i += kThreads) {
        const int row = i / WarpSums<K>::kRows, column = i % WarpSums<K>::kRows;
        if (column >= rows) continue;
        const int j = first + column;
        float sum = warp_sums.total(row, column);
        if (p.split > 1) sum += partner[i];
        sum *= p.unit;
        if (p.bias != nullptr) sum += to_float(p.bias[j]);
        if (p.float_out)
          static_cast<float*>(p.out)[row * p.out_stride + j] = sum;
        else
          static_cast<T*>(p.out)[row * p.out_stride + j] = from_float<T>(sum);
      }
    if (p.split > 1 && group + 1 < share.groups) cluster_sync();
  }
#endif
}

}  // namespace ladder::records

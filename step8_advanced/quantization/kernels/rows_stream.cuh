#pragma once
// The product for few rows of x as a stream of records (weight_records.h draws one), the sibling of matmul's rows_stream
// (step1_layers/linear/rows_stream.cuh): codes that become mma operands, a block's share, the ring that records come through, the rows
// of x, the sums of a warp. rows_stream_epilogue.cuh has what follows them, rows_stream_kernel.cuh the kernel.
#include "step1_layers/core/packs.cuh"
#include "step1_layers/core/tensor_core.cuh"
#include "step8_advanced/quantization/kernels/rows_stream_cuda.h"
#include "step8_advanced/quantization/weight_codes.h"

namespace ladder::records {

inline constexpr int kWarps = 8, kThreads = kWarps * kWarp;
inline constexpr int kTileRows = 16, kBlockColumns = 128;
inline constexpr int kMaxSlots = 5;  // of the ring

// The groups of a part, that differ by one unit at most: how many, the units of one, and how many groups have one more. Counted on the
// host: a block would begin with a chain of divisions.
struct PartGroups {
  int count, units, one_more;
};

template <class T>
struct Product {
  const T *x, *bias, *norm_weight;  // bias, norm_weight: nullptr where there is none
  const unsigned char* records;
  void* out;
  bool float_out,
      in_fours;  // in_fours: out is in T, and four neighbours of a row stand at a multiple of their size
  Epilogue epilogue;
  int m, n, k;
  int64_t x_stride, out_stride;
  float eps;
  float unit;  // of the scales
  // Bytes from a unit's records to those of the next; and of a group's tiles, from an even one to the odd one behind it, and to the
  // next even one.
  int64_t unit_stride, odd_tile, two_tiles;
  int split,
      log_split;  // one or two blocks that share a part of the units, each with columns of its own: a cluster
  int units, one_more;            // of such a part, and how many parts have one more
  PartGroups part[2];             // of a part, and of one with one more
  int rounds;                     // blocks of k of a warp, at most
  int blocks_of_k;                // records of a tile
  int slots;                      // of the ring
  int early;                      // of them, asked for before x
  bool lets_in_at_once;           // the next kernel, or when a warp has asked for all its records
  int partner_at, ring_at, x_at;  // bytes of shared memory, from its beginning, where the sums are
  bool sums_in_ring;              // which is empty when they are written

  // silu_and_mul needs the gate and the up columns of an output in one group.
  __host__ __device__ bool paired() const { return epilogue == Epilogue::silu_and_mul; }
  __host__ __device__ int unit_tiles() const { return paired() ? 2 : 1; }
  __host__ __device__ int width() const { return paired() ? n / 2 : n; }  // columns of out
};

// The value is computed here, and not where it is used.
__device__ inline void pin(int& value) {
  asm volatile("" : "+r"(value));
}

// So many bytes from global to shared memory, without waiting.
template <int bytes>
__device__ void copy_small_async(uint32_t shared_address, const void* from) {
  LADDER_SM80_ASM("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address), "l"(from), "n"(bytes)
                  : "memory");
}

// Two numbers in every word, of codes as weight_records.h places them. The numbers of a code u are kOffset + u: its bits are put
// into a power of two's mantissa.
template <class T>
struct NibbleNumbers {
  static constexpr uint32_t kPower = std::is_same_v<T, __half> ? 0x64006400 : 0x43004300;
  static constexpr float kOffset = std::is_same_v<T, __half> ? 1024 : 128;

  __device__ static void numbers(uint32_t word, uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;" : "=r"(a[i]) : "r"(word >> (4 * i)), "n"(kPower));
  }
};

// The same codes as operands of an mma, without a power of two beside them: a 16-bit float whose low byte is u and whose other bits are 0 is u of
// the type's smallest numbers, as exponents 0 and 1 count evenly. So a byte of two codes needs no shift: with the lower row's it
// is that row's operand, whole it is the upper row's, whose sums have those of the lower row in them, and its own 16 times. An mma takes
// subnormal numbers as they are and sums them in f32, which begins at 2^-126: x in bf16 is made large, and the sums' unit with it.
// Four instructions a word instead of seven.
template <class T>
struct NibbleOperands {
  static constexpr bool kHalf = std::is_same_v<T, __half>;
  static constexpr bool kLargeX = !kHalf;  // by 2^64: x itself has to be below 2^64
  // Of operands, not of numbers: a sum is a multiple of 2^-24, or of 2^(64 - 133).
  static constexpr float kUnit = kHalf ? 0x1p24f : 0x1p69f;
  static constexpr bool kUpperHasBoth = true;
  static constexpr float kUpperRow = 1.0f / 16;

  __device__ static void ones(uint32_t (&a)[4]) { a[0] = a[2] = 0x00010001, a[1] = a[3] = 0x00100010; }
  __device__ static void unpack(uint32_t word, uint32_t (&a)[4]) {
    a[1] = word & 0x00ff00ff, a[3] = __byte_perm(word, 0, 0x4341);
    a[0] = word & 0x000f000f, a[2] = a[3] & 0x000f000f;
  }
};

// The operands of mma j of half a record, and what their sums are worth.
template <class T, WeightCodes type>
struct Codes;

template <class T>
struct Codes<T, WeightCodes::int4> : NibbleOperands<T> {
  static constexpr int kVectors = 1, kPlanes = 1;
  static constexpr bool kHasZero = true;
  static constexpr float kOffset = NibbleNumbers<T>::kOffset;  // of numbers
  static constexpr float kZero = 8;                            // where a weight has no zero points

  __device__ static void unpack(const uint32_t* words, int j, int, uint32_t (&a)[4]) {
    NibbleOperands<T>::unpack(words[j], a);
  }
  __device__ static void numbers(const uint32_t* words, int j, int, uint32_t (&a)[4]) {
    NibbleNumbers<T>::numbers(words[j], a);
  }
};

template <class T>
struct Codes<T, WeightCodes::int8> : NibbleOperands<T> {
  static constexpr int kVectors = 2, kPlanes = 2;  // the second plane counts 16 times
  static constexpr bool kHasZero = true;
  static constexpr float kOffset = 17 * NibbleNumbers<T>::kOffset;
  static constexpr float kZero = 128;

  __device__ static void unpack(const uint32_t* words, int j, int plane, uint32_t (&a)[4]) {
    NibbleOperands<T>::unpack(words[4 * plane + j], a);
  }
  __device__ static void numbers(const uint32_t* words, int j, int plane, uint32_t (&a)[4]) {
    NibbleNumbers<T>::numbers(words[4 * plane + j], a);
  }
};

// A code's exponent and mantissa where a larger type has its own: a power of two too small. f16 leaves that to the scale; in bf16
// the numbers would be so small that products vanish.
template <class T>
struct Codes<T, WeightCodes::fp8_e4m3> {
  static constexpr int kVectors = 2, kPlanes = 1;
  static constexpr bool kHasZero = false, kLargeX = false;
  static constexpr float kOffset = 0, kZero = 0;
  static constexpr float kUnit = std::is_same_v<T, __half> ? 256 : 1, kUpperRow = 1;
  static constexpr bool kUpperHasBoth = false;

  // Of the upper byte of either half.
  __device__ static uint32_t of_bytes(uint32_t bytes) {
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
      a[2 * v] = of_bytes(words[2 * j + v] << 8);
      a[2 * v + 1] = of_bytes(words[2 * j + v]);
    }
  }
  __device__ static void numbers(const uint32_t* words, int j, int plane, uint32_t (&a)[4]) {
    unpack(words, j, plane, a);
  }
};

// Two of x as the operands of codes take them.
template <class C>
__device__ uint32_t x_of_codes(uint32_t pair) {
  if constexpr (C::kLargeX) {
    const uint32_t power = 0x5f805f80;  // 2^64 in bf16
    const __nv_bfloat162 large = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair),
                                         *reinterpret_cast<const __nv_bfloat162*>(&power));
    return *reinterpret_cast<const uint32_t*>(&large);
  } else {
    return pair;
  }
}
template <class C>
__device__ uint4 x_of_codes(const uint4& pack) {
  return {x_of_codes<C>(pack.x), x_of_codes<C>(pack.y), x_of_codes<C>(pack.z), x_of_codes<C>(pack.w)};
}

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

// What a block has of the weight, in groups that differ by one unit at most, and the columns of one of its warps: blocks first_r,
// first_r + stride, ... of k. A unit is a tile; of silu_and_mul a pair of them, of the gate's half and the up half, which stand next to
// each other in a group.
struct Share {
  int begin, groups, of_group, one_more;  // units of a group, and how many groups have one more
  int rank, split;
  int first_r, stride, rounds;  // rounds: blocks of k of a warp, at most

  template <class T>
  __device__ explicit Share(const Product<T>& p) {
    const int part = static_cast<int>(blockIdx.x) >> p.log_split;
    rank = static_cast<int>(blockIdx.x) & (p.split - 1), split = p.split;
    begin = part * p.units + min(part, p.one_more);
    const PartGroups& of_part = p.part[part < p.one_more];
    groups = of_part.count, of_group = of_part.units, one_more = of_part.one_more;
    first_r = rank * kWarps + static_cast<int>(threadIdx.x) / kWarp;
    stride = kWarps * p.split;
    rounds = p.rounds;
  }
  __device__ int first_unit(int group) const { return begin + group * of_group + min(group, one_more); }
  __device__ int units(int group) const { return of_group + (group < one_more); }

  // Columns of x that the block multiplies, with those of its last round that may lie behind k; and where one of x stands among them,
  // or -1.
  __device__ int own_columns() const { return rounds * kWarps * kBlockColumns; }
  __device__ int place_of(int column) const {
    const int block = column / kBlockColumns, round = block / kWarps;
    if ((round & (split - 1)) != rank) return -1;
    return ((round >> (split - 1)) * kWarps + block % kWarps) * kBlockColumns + column % kBlockColumns;
  }
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
          int tiles_of_group, bool x_in_shared, int blocks_of_multiprocessor = 1>
struct Kind {
  using T = Number;
  using C = Codes<T, codes_type>;
  using Rows = RowPair<codes_type, zero_points>;
  static constexpr WeightCodes type = codes_type;
  static constexpr int octets = row_octets;  // of rows of x
  static constexpr int groups = groups_of_record;
  static constexpr bool zeros = zero_points;
  static constexpr int tiles = tiles_of_group;  // of a group, at most
  // Which are multiplied a few at a time, each time a slot of the ring: so many that an mma need not wait for the one before it.
  static constexpr int turn_tiles = tiles < 4 ? tiles : 4, turns = ceil_div(tiles, turn_tiles);
  static constexpr bool shared_x = x_in_shared;            // normed or as it is
  static constexpr int blocks = blocks_of_multiprocessor;  // that are this kernel's
  // For another block of as many registers, this kernel's or the next one's.
  static constexpr bool leaves_room = octets == 1 && tiles <= 4;
  // Groups' sums: where two places take turns, a warp that has gone on to the next group leaves alone what others still read. For 16 rows
  // they would take the ring's.
  static constexpr int sums_places = octets == 1 ? 2 : 1;

  // A record, and its place in a slot, where each thread has what it copies and multiplies itself.
  static constexpr int codes_bytes = 2 * C::kVectors * kWarp * 16,
                       record_bytes = codes_bytes + groups * 8 * Rows::kBytes;
  static constexpr int tile_bytes = kThreads * (2 * C::kVectors * 16 + groups * Rows::kBytes);
  static constexpr int slot_bytes = turn_tiles * tile_bytes;
};

// The ring of slots that records come through: a slot has a record per warp and tile of a turn. A thread copies the bytes that it
// will multiply itself, so no thread waits for another.
template <class K, class Share>
struct RecordRing {
  const unsigned char* from;         // this warp's record of the group's first tile
  int group, r, turn = 0, slot = 0;  // to ask for
  uint32_t codes_at;                 // of the thread, in slot 0

  template <class P>
  __device__ RecordRing(const P& p, const Share& share, const unsigned char* shared)
      : group(share.first_r < p.blocks_of_k ? 0 : share.groups), r(share.first_r) {
    codes_at = shared_address(shared) + p.ring_at + threadIdx.x * 16;
    go_to_group(p, share);
  }
  template <class P>
  __device__ void go_to_group(const P& p, const Share& share) {
    from = p.records + share.first_unit(group) * p.unit_stride + static_cast<int64_t>(r) * K::record_bytes;
  }
  __device__ static uint32_t rows_at() {  // of a tile, from the thread's codes
    return 2 * K::C::kVectors * kThreads * 16 - threadIdx.x * 16 + threadIdx.x * K::Rows::kBytes;
  }

  // Asks for one slot, or for nothing at the end.
  template <class P>
  __device__ void copy_next(const P& p, const Share& share) {
    if (group < share.groups) {
      const int lane = threadIdx.x % kWarp, first = turn * K::turn_tiles,
                count = share.units(group) * p.unit_tiles() - first;
      const uint32_t to = codes_at + slot * K::slot_bytes;
#pragma unroll
      for (int tile = 0; tile < K::turn_tiles; ++tile) {
        if (tile >= count) break;
        const unsigned char* record = from + (first / 2 + tile / 2) * p.two_tiles + tile % 2 * p.odd_tile;
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
      if (++turn == K::turns) {
        turn = 0;
        r += share.stride;
        from += share.stride * K::record_bytes;
        if (r >= p.blocks_of_k) {
          r = share.first_r, ++group;
          go_to_group(p, share);
        }
      }
    }
    commit_copies();
  }
};

// The lane's columns of a block of k, of up to 16 rows of x: of each 32 columns a pack of 8.
template <int octets>
struct XColumns {
  uint4 pack[4][octets];

  template <class C>
  __device__ XColumns of_codes() const {
    XColumns columns;
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter)
#pragma unroll
      for (int o = 0; o < octets; ++o) columns.pack[quarter][o] = x_of_codes<C>(pack[quarter][o]);
    return columns;
  }
  // Registers 2 part and 2 part + 1 of a pack: operand b of an mma.
  __device__ void operand(int quarter, int part, int o, uint32_t (&b)[2]) const {
    const uint4& x = pack[quarter][o];
    b[0] = part == 0 ? x.x : x.z;
    b[1] = part == 0 ? x.y : x.w;
  }
};

// Where a lane's columns come from: x, or its normed rows in shared memory. Rows past the last one are copies of it, which nothing
// stores; columns past the end are zeros.
template <class K>
struct XRows {
  using T = typename K::T;
  const T* rows[K::octets];
  int k;

  __device__ XRows(const T* x, int64_t stride, int m, int k) : k(k) {
    const int g = threadIdx.x % kWarp / 4, column = threadIdx.x % 4 * 8;
#pragma unroll
    for (int o = 0; o < K::octets; ++o) rows[o] = x + min(o * 8 + g, m - 1) * stride + column;
  }
  // Of block r.
  __device__ void load(int r, XColumns<K::octets>& x) const {
    if ((r + 1) * kBlockColumns <= k)
      load<true>(r, x);
    else
      load<false>(r, x);
  }

 private:
  template <bool whole>
  __device__ void load(int r, XColumns<K::octets>& x) const {
    const int end = k - static_cast<int>(threadIdx.x) % 4 * 8;
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      const int column = r * kBlockColumns + 32 * quarter;
#pragma unroll
      for (int o = 0; o < K::octets; ++o)
        x.pack[quarter][o] =
            whole || column < end ? *reinterpret_cast<const uint4*>(rows[o] + column) : uint4{0, 0, 0, 0};
    }
  }
};

// The sums of a warp: over the columns since the last group of columns ended, and over all before, times their scales.
template <class K>
struct WarpProduct {
  using T = typename K::T;
  using C = typename K::C;
  float total[K::tiles][K::octets][4] = {};
  float sum[K::turn_tiles][C::kPlanes][K::octets][4];
  // Each row of x alone, as if a code were 1: what is taken off for the codes that stand for 0.
  float of_x[K::octets][4];

  // A slot's records, those of a turn, times the columns of x.
  template <int turn>
  __device__ void multiply(uint32_t slot, const XColumns<K::octets>& x) {
    constexpr int kMmaOfGroup = 8 / K::groups;
    constexpr bool kSumsX = C::kHasZero && (turn == 0 || K::groups > 1);  // else those of the first turn stay
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t words[K::turn_tiles][4 * C::kVectors];
#pragma unroll
      for (int tile = 0; tile < tiles_of<turn>(); ++tile)
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
        if constexpr (kSumsX) {
          uint32_t ones[4];
          C::ones(ones);
#pragma unroll
          for (int o = 0; o < K::octets; ++o) add(of_x[o], ones, b[o], first);
        }
#pragma unroll
        for (int tile = 0; tile < tiles_of<turn>(); ++tile)
#pragma unroll
          for (int plane = 0; plane < C::kPlanes; ++plane) {
            uint32_t a[4];
            C::unpack(words[tile], j, plane, a);
#pragma unroll
            for (int o = 0; o < K::octets; ++o) add(sum[tile][plane][o], a, b[o], first);
          }
        if ((index + 1) % kMmaOfGroup == 0) end_group<turn>(slot, index / kMmaOfGroup);
      }
    }
  }

 private:
  template <int turn>
  __device__ static constexpr int tiles_of() {
    return K::tiles - turn * K::turn_tiles < K::turn_tiles ? K::tiles - turn * K::turn_tiles : K::turn_tiles;
  }

  __device__ static void add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], bool first) {
    if (first)
      mma_from_zero<T>(d, a, b);
    else
      mma_16x8x16<T>(d, a, b);
  }

  template <int turn>
  __device__ void end_group(uint32_t slot, int group) {
#pragma unroll
    for (int tile = 0; tile < tiles_of<turn>(); ++tile) {
      const typename K::Rows rows(slot + tile * K::tile_bytes + RecordRing<K, int>::rows_at() +
                                  group * kThreads * K::Rows::kBytes);
      const float scale[2] = {rows.scale[0], C::kUpperRow * rows.scale[1]};
#pragma unroll
      for (int o = 0; o < K::octets; ++o) {
        float values[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          values[i] = sum[tile][0][o][i];
          if constexpr (C::kPlanes == 2) values[i] = fmaf(16, sum[tile][1][o][i], values[i]);
        }
        if constexpr (C::kUpperHasBoth) values[2] -= values[0], values[3] -= values[1];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (K::zeros)
            values[i] = fmaf(-rows.zero[i / 2], of_x[o][i], values[i]);
          else if constexpr (C::kHasZero)
            values[i] = fmaf(-C::kZero, of_x[o][i], values[i]);
          float& to = total[turn * K::turn_tiles + tile][o][i];
          to = fmaf(scale[i / 2], values[i], to);
        }
      }
    }
  }
};

}  // namespace ladder::records

#pragma once
// The product for few rows of rounded activations as a stream of the weight's codes: the ring that they come through, a row of x
// rounded in shared memory, the products of a warp. rows_stream_8bit_cuda.cu has the kernel.
#include "step1_layers/core/packs.cuh"
#include "step1_layers/core/tensor_core.cuh"
#include "step8_advanced/quantization/kernels/row_grid.cuh"
#include "step8_advanced/quantization/kernels/rows_stream_cuda.h"
#include "step8_advanced/quantization/kernels/stream_tiles.cuh"

namespace ladder::eight_bit {

using stream_tiles::kThreads;
using stream_tiles::kTileRows;
using stream_tiles::kTiles;
using stream_tiles::kWarps;
using Groups = stream_tiles::TileGroups;

inline constexpr int kRows = static_cast<int>(kMaxRowsOfMma);  // of x, at most
inline constexpr int kChunk = 64;  // columns that a warp multiplies at a time: 16 of a row in a lane
inline constexpr int kTileBytes = 2 * kThreads * 16;
inline constexpr int kMaxSlots = 8;

template <class T>
struct Product {
  // x: a row that every block rounds for itself (RowRounding), or, where a kernel before has, codes [m, k] and scales of rows.
  const T* x;
  const T* norm_weight;  // nullptr: x is not normed
  float eps;
  Rounding rounding;
  const uint8_t* x_codes;
  const float* x_scales;

  const uint8_t* weight;  // codes [n, k]
  const float* weight_scales;
  const T* bias;  // nullptr: none
  void* out;
  bool float_out;
  Epilogue epilogue;
  int m, n, k;
  int64_t weight_stride, out_stride;
  // Bytes from an even tile of a group to the odd one behind it, to the next even one, and to the lower half of a tile.
  int64_t odd_tile, two_tiles, half_tile;
  int units, one_more;                 // of a block, and how many blocks have one more
  int slots, early, slot_bytes, x_at;  // of the ring: x_at is where a slot has its part of x
  int sums_at,
      ring_at;  // in shared memory, behind a rounded row; the same where the sums come when the ring is empty

  // silu_and_mul needs the gate and the up columns of an output in one group.
  __host__ __device__ bool paired() const { return epilogue == Epilogue::silu_and_mul; }
  __host__ __device__ int unit_tiles() const { return paired() ? 2 : 1; }
  __host__ __device__ int width() const { return paired() ? n / 2 : n; }  // columns of out
};

// The ring of slots that the weight comes through: a slot has a chunk per warp and tile of a group and, unless x is rounded here, of
// the rows of x behind them. A thread copies the bytes that it will multiply itself, so no thread waits for another. Rows and columns
// past the end become zeros.
template <class T, bool rounds>
struct CodeRing {
  const Product<T>& p;
  const Groups& groups;
  uint32_t to;        // the thread's bytes, in slot 0
  int first, column;  // of the thread's 16, in the first chunk of its warp and the next one to ask for
  int group = 0, slot = 0;

  __device__ CodeRing(const Product<T>& product, const Groups& of_block, const unsigned char* shared)
      : p(product),
        groups(of_block),
        to(shared_address(shared) + product.ring_at + threadIdx.x * 16),
        first(static_cast<int>(threadIdx.x) / kWarp * kChunk + static_cast<int>(threadIdx.x) % 4 * 16),
        column(first) {
    if (threadIdx.x / kWarp * kChunk >= p.k) group = groups.count;  // no column for this warp
  }

  // Asks for the weight of so many slots more.
  __device__ void fill_weight(int slots) {
#pragma unroll 1
    for (int s = 0; s < slots; ++s) {
      if (group < groups.count) copy_weight(), advance();
      if constexpr (rounds) commit_copies();
    }
  }
  __device__ void fill_x() const {
    int of_column = first;
#pragma unroll 1
    for (int s = 0; s < p.slots; ++s, of_column = behind(of_column)) {
      if (first / kChunk * kChunk < p.k) copy_x(of_column, s);
      commit_copies();
    }
  }
  // Asks for one slot, or for nothing at the end.
  __device__ void copy_next() {
    if (group < groups.count) copy_weight(), copy_x(column, slot), advance();
    commit_copies();
  }
  __device__ uint4 x(int of_slot) const {
    return load_shared(x_at(of_slot));
  }

 private:
  __device__ uint32_t x_at(int of_slot) const {
    return to + of_slot * p.slot_bytes + p.x_at;
  }
  __device__ void copy_weight() const {
    const int tiles = groups.units(group) * p.unit_tiles();
    const int row = groups.first_unit(group) * kTileRows + static_cast<int>(threadIdx.x) % kWarp / 4;
    const int rows_left = p.paired() ? kTiles * kTileRows : p.n - row;
    const uint8_t* from = p.weight + row * p.weight_stride + column;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile >= tiles) break;
      const uint8_t* upper = from + tile % 2 * p.odd_tile;
#pragma unroll
      for (int half = 0; half < 2; ++half)
        copy_of_line_async(to + slot * p.slot_bytes + (2 * tile + half) * kThreads * 16,
                           upper + half * p.half_tile,
                           tile * kTileRows + half * 8 < rows_left && column < p.k);
      if (tile % 2 == 1) from += p.two_tiles;
    }
  }
  __device__ void copy_x(int of_column, int of_slot) const {
    if constexpr (rounds) return;
    const int row = static_cast<int>(threadIdx.x) % kWarp / 4;
    copy_of_line_async(x_at(of_slot), p.x_codes + static_cast<int64_t>(row) * p.k + of_column,
                       row < p.m && of_column < p.k);
  }
  __device__ int behind(int of_column) const {
    const int next = of_column + kWarps * kChunk;
    return next / kChunk * kChunk < p.k ? next : first;
  }
  __device__ void advance() {
    slot = slot + 1 < p.slots ? slot + 1 : 0;
    column = behind(column);
    if (column == first) ++group;
  }
};

// Of all threads that multiply; every one gets it. `partial`: in shared memory, used once.
template <class Combine>
__device__ float reduce_once(float x, float* partial, Combine&& combine) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, offset));
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = partial[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) x = combine(x, partial[warp]);
  return x;
}

// The only row of x, normed if there is a norm before the product, rounded by every block for itself, from L2: its codes and their
// scale are in shared memory before a kernel of its own would have begun, while the ring fills. A thread has kPacks packs of it.
template <class T, bool is_float, int kPacks>
struct RowRounding {
  Pack<T> weight[kPacks], x[kPacks];

  // Before the previous kernel has ended.
  __device__ explicit RowRounding(const Product<T>& p) {
    if (p.norm_weight == nullptr) return;
    each_pack(p, [&](int i, int column) { weight[i] = load_pack(p.norm_weight + column); });
  }
  __device__ void load(const Product<T>& p) {
    each_pack(p, [&](int i, int column) { x[i] = load_pack(p.x + column); });
  }
  // Returns the scale. By all threads that multiply.
  __device__ float store(const Product<T>& p, uint8_t* codes) {
    if (p.norm_weight != nullptr) norm(p);
    __shared__ float maxima[kWarps];
    RowMagnitude<T> magnitude;
    each_pack(p, [&](int i, int) { magnitude.add(x[i]); });
    RowExtent extent;
    extent.high =
        reduce_once(magnitude.of_thread(p.rounding), maxima, [](float a, float b) { return fmaxf(a, b); });
    extent.low = -extent.high;
    const RowGrid grid(p.rounding, extent);
    each_pack(p, [&](int i, int column) {
      *reinterpret_cast<uint2*>(codes + column) = codes_of<is_float>(x[i], p.rounding, grid, extent.is_bad());
    });
    __syncthreads();
    return extent.is_bad() ? NAN : grid.scale;
  }

 private:
  // As the operator (rms_norm.h): in f32, rounded to T.
  __device__ void norm(const Product<T>& p) {
    __shared__ float partial[kWarps];
    float sum = 0;
    each_pack(p, [&](int i, int) {
#pragma unroll
      for (int e = 0; e < Pack<T>::kSize; ++e) {
        const float value = to_float(x[i].value[e]);
        sum = fmaf(value, value, sum);
      }
    });
    sum = reduce_once(sum, partial, [](float a, float b) { return a + b; });
    const float scale = rsqrtf(__fdividef(sum, static_cast<float>(p.k)) + p.eps);
    each_pack(p, [&](int i, int) {
#pragma unroll
      for (int e = 0; e < Pack<T>::kSize; ++e)
        x[i].value[e] = from_float<T>(to_float(x[i].value[e]) * scale * to_float(weight[i].value[e]));
    });
  }
  template <class Fn>
  __device__ static void each_pack(const Product<T>& p, Fn&& fn) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int column = static_cast<int>(threadIdx.x + i * kThreads) * Pack<T>::kSize;
      if (column < p.k) fn(i, column);
    }
  }
};

// D (16 x 8) += A (16 x 32, rows) * B (32 x 8, columns) over a warp. Lane 4 g + t: words of a are rows g, g + 8, g, g + 8, those of b
// are column g, and any four columns of k may be the lane's in a word if they are the same ones in a and b; d as mma_16x8x16
// (tensor_core.cuh) has it. Of integers an instruction. Of E4M3 none on Hopper: two conversions a word and two mma in f16, which
// holds each number exactly.
__device__ inline void mma_16x8x32(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  LADDER_SM80_ASM(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void mma_16x8x32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  __trap();
#else
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// A warp's sums of a group.
template <class Sum>
struct WarpSums : stream_tiles::TileSums<Sum, 1> {
  using stream_tiles::TileSums<Sum, 1>::sum;

  // A slot's codes, of so many tiles, times those of x at the same columns. Two tiles in turn, as an mma waits for the one before it
  // of the same sums; the second of a last pair may be one that the group does not have, whose sums nobody stores.
  __device__ void multiply(uint32_t slot, int tiles, const uint4& x) {
#pragma unroll
    for (int first = 0; first < kTiles; first += 2) {
      if (first >= tiles) break;
      uint4 low[2], high[2];  // rows 0 to 7 of a tile, and 8 to 15
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        low[i] = load_shared(slot + (first + i) * kTileBytes);
        high[i] = load_shared(slot + (first + i) * kTileBytes + kThreads * 16);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint4 &l = low[i], &h = high[i];
          const uint32_t a[4] = {half == 0 ? l.x : l.z, half == 0 ? h.x : h.z, half == 0 ? l.y : l.w,
                                 half == 0 ? h.y : h.w};
          const uint32_t b[2] = {half == 0 ? x.x : x.z, half == 0 ? x.y : x.w};
          mma_16x8x32(sum[first + i][0], a, b);
        }
    }
  }
};

}  // namespace ladder::eight_bit

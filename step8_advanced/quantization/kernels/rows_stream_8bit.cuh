#pragma once
// The product for few rows of rounded activations as a stream of the weight's codes through wgmma: the ring that they come through,
// rows of x rounded in shared memory, the products of a warpgroup. rows_stream_8bit_cuda.cu has the kernel.
//
// wgmma takes 64 rows of the weight; a block's even share of 4096 is 32. So the weight's columns are folded in two parts: A is 32 rows of
// the weight in the first part and the same rows in the second one, B the rows of x in either part, and D has the sums of both parts in
// two of its quarters. The other two are nobody's.
//
//     weight, 32 rows               A, 64 rows     B                    D
//     +----------+----------+       +-------+      +------+------+      +------+------+
//     |  part 0  |  part 1  |       | part 0|  *   | x, 0 | x, 1 |  =   | sums |      |
//     +----------+----------+       +-------+      +------+------+      +------+------+
//      a stage: 128 columns         | part 1|                           |      | sums |
//      of each part                 +-------+                           +------+------+
#include "step1_layers/core/packs.cuh"
#include "step1_layers/linear/fused_product.h"
#include "step8_advanced/quantization/kernels/row_grid.cuh"
#include "step8_advanced/quantization/kernels/rows_stream_cuda.h"
#include "step8_advanced/quantization/kernels/wgmma_shapes.cuh"

namespace ladder::eight_bit {

inline constexpr int kParts = 2, kTileRows = 64 / kParts;  // of the weight
inline constexpr int kDepth = 128;                         // columns of a part in a stage
inline constexpr int kStageBytes = kParts * kTileRows * kDepth;
// Warpgroups that multiply; one warp more asks the copy engine.
inline constexpr int kGroups = 2, kMultiply = kGroups * kWarpgroup, kThreads = kMultiply + kWarp;
inline constexpr int kMostSlots = 24;
// Stages that are under way at a time. Fewer let memory rest; with more, x and what the kernel before has written wait for them.
inline constexpr int kInFlight = 6;

template <class T>
struct Product {
  // A stage is a box: 128 codes, of the rows of a tile (silu_and_mul: the gate's and the up half's), of each part.
  CUtensorMap weight;
  // x: rows that every block rounds for itself (RowRounding), or, where a kernel before has, codes [m, k], an octet of rows and a part
  // a box, and scales of rows.
  CUtensorMap x_codes;
  const T* x;
  int64_t x_stride;
  const T* norm_weight;  // nullptr: x is not normed
  float eps;
  Rounding rounding;
  const float *x_scales, *weight_scales;
  const T* bias;  // nullptr: none
  void* out;
  bool float_out;
  Epilogue epilogue;
  int m, n, k;
  int64_t out_stride;
  int tiles, one_more;  // of a block, and how many blocks have one more
  int part;             // columns of a part, in whole stages, of which each warpgroup has as many
  int slots;            // of the ring, as many for each warpgroup
  int x_at, sums_at;    // in shared memory, behind the ring

  // silu_and_mul needs the gate and the up row of an output in one tile.
  __host__ __device__ bool paired() const { return epilogue == Epilogue::silu_and_mul; }
  // Columns of out: of a tile, and all.
  __host__ __device__ int outputs() const { return paired() ? kTileRows / 2 : kTileRows; }
  __host__ __device__ int width() const { return paired() ? n / 2 : n; }
  __host__ __device__ int stages() const { return part / kDepth; }  // of a tile
};

// What a block has of the weight.
struct Tiles {
  int begin, count;

  template <class T>
  __device__ explicit Tiles(const Product<T>& p) {
    const int block = static_cast<int>(blockIdx.x);
    begin = block * p.tiles + min(block, p.one_more);
    count = p.tiles + (block < p.one_more);
  }
};

// In shared memory, where a slot of the ring has its barriers: `full` ends a phase when a stage has arrived, `empty` when it has been
// multiplied.
struct Ring {
  uint32_t first, full, empty;

  __device__ uint32_t at(int slot) const { return first + slot * kStageBytes; }
  __device__ uint32_t filled(int slot) const { return full + slot * 8; }
  __device__ uint32_t emptied(int slot) const { return empty + slot * 8; }
};

// One thread asks the copy engine for the block's stages, kInFlight ahead of those that have arrived.
template <class T>
__device__ void copy_stages(const Product<T>& p, const Tiles& tiles, const Ring& ring) {
  struct Place {
    int slots, slot = 0;
    uint32_t parity = 0;
    __device__ void advance() {
      if (++slot == slots) slot = 0, parity ^= 1;
    }
  } ask{p.slots}, arrived{p.slots};
  const int rows = p.outputs(), stages = p.stages(), in_flight = min(kInFlight, p.slots);
  int asked = 0;
  for (int tile = tiles.begin; tile < tiles.begin + tiles.count; ++tile)
    for (int stage = 0; stage < stages; ++stage, ask.advance()) {
      if (asked++ >= in_flight) {
        wait_phase(ring.filled(arrived.slot), arrived.parity);
        arrived.advance();
      }
      wait_phase(ring.emptied(ask.slot), ask.parity ^ 1);
      arrive_and_expect(ring.filled(ask.slot), kStageBytes);
      copy_box(ring.at(ask.slot), p.weight, ring.filled(ask.slot), stage * (kDepth / 2), tile * rows, 0, 0,
               0);
    }
}

// x in shared memory, as wgmma finds it: a part, of it an octet of rows, of it stages.
struct Columns {
  uint64_t first;         // of the first 32 columns
  int of_step, of_stage;  // on to the next 32, and to the next stage
};

// Codes of x that a kernel before has made: the copy engine brings them, in rows of 128 bytes. By all threads that multiply.
template <int octets, class T>
__device__ Columns copy_codes(const Product<T>& p, uint32_t to, uint32_t barrier) {
  constexpr int kTile = 8 * kDepth;  // of a stage
  const int stages = p.stages();
  if (threadIdx.x == 0) {
    arrive_and_expect(barrier, kParts * octets * stages * kTile);
    for (int part = 0; part < kParts; ++part)
      for (int octet = 0; octet < octets; ++octet)
        copy_box(to + (part * octets + octet) * stages * kTile, p.x_codes, barrier, 0, octet * 8,
                 part * stages, 0, 0);
  }
  return {wgmma_tile(to, 16, stages * kTile), 32 >> 4, kTile >> 4};
}

// Rows of x, normed if there is a norm before the product, rounded by every block for itself, from L2: their codes are in shared memory
// before a kernel of its own would have begun, while the ring fills. x has so many rows, a thread kPacks packs of each.
template <class T, bool is_float, int rows, int kPacks>
struct RowRounding {
  Pack<T> weight[kPacks], x[rows][kPacks];

  // Before the previous kernel has ended.
  __device__ explicit RowRounding(const Product<T>& p) {
    if (p.norm_weight == nullptr) return;
    each_pack(p, [&](int i, int column) { weight[i] = load_pack(p.norm_weight + column); });
  }
  __device__ void load(const Product<T>& p) {
#pragma unroll
    for (int row = 0; row < rows; ++row)
      each_pack(p, [&](int i, int column) { x[row][i] = load_pack(p.x + row * p.x_stride + column); });
  }
  // To `codes`, scales of rows. By all threads that multiply.
  __device__ void store(const Product<T>& p, unsigned char* codes, float (&scales)[rows]) {
    if (p.norm_weight != nullptr) norm(p);
    float high[rows];
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      RowMagnitude<T> magnitude;
      each_pack(p, [&](int i, int) { magnitude.add(x[row][i]); });
      high[row] = magnitude.of_thread(p.rounding);
    }
    __shared__ float maxima[rows * kWarps];
    reduce(high, maxima, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      const RowExtent extent{-high[row], high[row]};
      const RowGrid grid(p.rounding, extent);
      each_pack(p, [&](int i, int column) {
        *place(codes, row, column) = codes_of<is_float>(x[row][i], p.rounding, grid, extent.is_bad());
      });
      scales[row] = extent.is_bad() ? NAN : grid.scale;
    }
  }
  // wgmma takes eight rows of 16 bytes that follow each other. Those behind the last one are the next columns of the first ones, for
  // columns of D that nobody reads.
  __device__ static Columns columns(const Product<T>& p, uint32_t codes) {
    return {wgmma_core_matrices(codes, rows * 16, rows * p.part), 2 * rows, rows * kDepth >> 4};
  }

 private:
  static constexpr int kWarps = kMultiply / kWarp;

  __device__ static uint2* place(unsigned char* codes, int row, int column) {
    return reinterpret_cast<uint2*>(codes + column / 16 * (rows * 16) + row * 16 + column % 16);
  }
  // Of all threads that multiply; every one gets them. `partial`: in shared memory, used once.
  template <class Combine>
  __device__ static void reduce(float (&x)[rows], float* partial, Combine&& combine) {
#pragma unroll
    for (int row = 0; row < rows; ++row) {
#pragma unroll
      for (int offset = kWarp / 2; offset > 0; offset /= 2)
        x[row] = combine(x[row], __shfl_xor_sync(kAllLanes, x[row], offset));
      if (threadIdx.x % kWarp == 0) partial[row * kWarps + threadIdx.x / kWarp] = x[row];
    }
    sync_some(1, kMultiply);
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      x[row] = partial[row * kWarps];
#pragma unroll
      for (int warp = 1; warp < kWarps; ++warp) x[row] = combine(x[row], partial[row * kWarps + warp]);
    }
  }
  // As the operator (rms_norm.h): in f32, rounded to T.
  __device__ void norm(const Product<T>& p) {
    __shared__ float partial[rows * kWarps];
    float sums[rows];
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      sums[row] = 0;
      each_pack(p, [&](int i, int) {
#pragma unroll
        for (int e = 0; e < Pack<T>::kSize; ++e) {
          const float value = to_float(x[row][i].value[e]);
          sums[row] = fmaf(value, value, sums[row]);
        }
      });
    }
    reduce(sums, partial, [](float a, float b) { return a + b; });
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      const float scale = rsqrtf(__fdividef(sums[row], static_cast<float>(p.k)) + p.eps);
      each_pack(p, [&](int i, int) {
#pragma unroll
        for (int e = 0; e < Pack<T>::kSize; ++e)
          x[row][i].value[e] =
              from_float<T>(to_float(x[row][i].value[e]) * scale * to_float(weight[i].value[e]));
      });
    }
  }
  template <class Fn>
  __device__ static void each_pack(const Product<T>& p, Fn&& fn) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int column = static_cast<int>(threadIdx.x + i * kMultiply) * Pack<T>::kSize;
      if (column < p.k) fn(i, column);
    }
  }
};

// A warpgroup's products: it has every kGroups-th stage, and of the ring as many slots.
template <class Sum, int octets>
struct GroupProducts {
  static constexpr int kSums = 4 * octets, kAccumulators = kParts * kSums;  // of a thread
  static constexpr int kChains = 2;  // of a stage, half of its columns each
  using Accumulators = Sum[kChains][kAccumulators];

  const Ring& ring;
  const int slots, group;
  int slot = 0;  // the first one of as many as there are groups
  uint32_t parity = 0;

  // Of a tile with so many stages: rows g and g + 8 of the warp's 16, rows 2 t and 2 t + 1 of an octet of x, as wgmma has them. E4M3
  // is added up with some 14 bits, so every 64 columns the sums are added to floats, while the next stage is multiplied.
  __device__ void multiply(Sum (&sums)[kSums], Columns x, int stages) {
    Accumulators d, next;
    x.first += group * x.of_stage;
    int of_d = start(d, x), of_next = 0;
    int stage = kGroups;
    for (; stage + kGroups < stages; stage += 2 * kGroups) {
      of_next = start(next, x);
      wgmma_wait<1>();
      add(sums, d, of_d);
      of_d = start(d, x);
      wgmma_wait<1>();
      add(sums, next, of_next);
    }
    if (stage < stages) {
      of_next = start(next, x);
      wgmma_wait<1>();
      add(sums, d, of_d);
      wgmma_wait<0>();
      add(sums, next, of_next);
    } else {
      wgmma_wait<0>();
      add(sums, d, of_d);
    }
  }

 private:
  __device__ int start(Accumulators& d, Columns& x) {
    const int at = slot + group;
    wait_phase(ring.filled(at), parity);
    keep_in_place(d);
    wgmma_fence();
    const uint64_t weight = wgmma_tile(ring.at(at));
    constexpr int kSteps = kDepth / 32 / kChains;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int chain = 0; chain < kChains; ++chain) {
        const int of_stage = chain * kSteps + step;
        wgmma_codes(d[chain], weight + of_stage * (32 >> 4), x.first + of_stage * x.of_step, step > 0);
      }
    wgmma_commit();
    x.first += kGroups * x.of_stage;
    if ((slot += kGroups) == slots) slot = 0, parity ^= 1;
    return at;
  }
  // The warp's rows of A are of one part, and of x's columns only that part's are theirs.
  __device__ void add(Sum (&sums)[kSums], Accumulators& d, int slot_of_d) const {
    keep_in_place(d);
    __syncwarp();
    if (threadIdx.x % kWarp == 0) arrive(ring.emptied(slot_of_d));
    const bool second = threadIdx.x % kWarpgroup / kWarp * 16 >= kTileRows;
#pragma unroll
    for (int chain = 0; chain < kChains; ++chain)
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[i] += second ? d[chain][kSums + i] : d[chain][i];
  }
  __device__ static void keep_in_place(Accumulators& d) {
#pragma unroll
    for (int chain = 0; chain < kChains; ++chain)
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i)
        if constexpr (std::is_same_v<Sum, float>)
          asm volatile("" : "+f"(d[chain][i])::"memory");
        else
          asm volatile("" : "+r"(d[chain][i])::"memory");
  }
};

// The warpgroups' sums of a tile, in shared memory: [group][row of x][row of A]. Two of them, so that the next tile's may come while
// these are read.
template <class Sum, int octets>
struct TileSums {
  static constexpr int kRows = 8 * octets, kStride = 64 + 4;  // 4 more spread a warp's stores over the banks
  static constexpr int kBytes = 2 * kGroups * kRows * kStride * static_cast<int>(sizeof(Sum));

  Sum* sums;

  __device__ TileSums(unsigned char* at, int tile)
      : sums(reinterpret_cast<Sum*>(at) + tile % 2 * (kGroups * kRows * kStride)) {}

  __device__ void store(const Sum (&of_thread)[4 * octets], int m) const {
    const int thread = static_cast<int>(threadIdx.x), group = thread / kWarpgroup;
    const int row_of_warp = thread % kWarpgroup / kWarp * 16, g = thread % kWarp / 4, t = thread % 4;
#pragma unroll
    for (int i = 0; i < 4 * octets; ++i)
      if (const int row = i / 4 * 8 + 2 * t + i % 2; row < m)
        sums[(group * kRows + row) * kStride + row_of_warp + g + i % 4 / 2 * 8] = of_thread[i];
  }
  // Of a row of x and one of the tile's.
  __device__ Sum total(int row, int of_tile) const {
    Sum total = 0;
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        total += sums[(group * kRows + row) * kStride + part * kTileRows + of_tile];
    return total;
  }
};

}  // namespace ladder::eight_bit

// The rung for few rows of rounded activations on a GPU: the weight's codes as they lie, row after row, so that the product for
// many rows (cublaslt_8bit_cuda.cpp) reads the same memory.
#include <algorithm>
#include <optional>

#include "step1_layers/core/packed.h"
#include "step1_layers/core/tensor_core.cuh"
#include "step8_advanced/quantization/kernels/eight_bit_codes.h"
#include "step8_advanced/quantization/kernels/eight_bit_rows_cuda.h"
#include "step8_advanced/quantization/kernels/quantized_matmul_cuda.h"
#include "step8_advanced/quantization/kernels/scaled_sum.cuh"

namespace ladder {

namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kTileRows = 16, kTiles = 4;  // of a group, at most
constexpr int kChunk = 64;                 // columns that a warp multiplies at a time: 16 of a row in a lane
constexpr int kTileBytes = 2 * kThreads * 16;
constexpr int kMaxRows = 32, kMaxSlots = 8;

template <class T>
struct Product {
  const uint8_t *x, *weight;  // codes: [m, k], [n, k]
  const float *x_scales, *weight_scales;
  const T* bias;  // nullptr: none
  void* out;
  bool float_out;
  int m, n, k;
  int64_t weight_stride, out_stride;
  int tiles, one_more;    // of a block, and how many blocks have one more
  int slots, slot_bytes;  // of the ring
  int ring_at;  // in shared memory, behind the sums; 0: where the sums are, which come when it is empty
};

// The tiles of a block in groups that differ by one at most.
struct Groups {
  int begin, count, of_group, one_more;

  template <class T>
  __device__ explicit Groups(const Product<T>& p) {
    const int block = static_cast<int>(blockIdx.x), tiles = p.tiles + (block < p.one_more);
    begin = block * p.tiles + min(block, p.one_more);
    count = ceil_div(tiles, kTiles), of_group = tiles / count, one_more = tiles % count;
  }
  __device__ int first_tile(int group) const { return begin + group * of_group + min(group, one_more); }
  __device__ int tiles(int group) const { return of_group + (group < one_more); }
};

// The ring of slots that the weight comes through: a slot has a chunk per warp and tile of a group. A thread copies the bytes that
// it will multiply itself, so no thread waits for another. Rows and columns past the end become zeros.
template <class T>
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

  // Asks for one slot, or for nothing at the end.
  __device__ void copy_next() {
    if (group < groups.count) {
      const int count = groups.tiles(group);
      const int row = groups.first_tile(group) * kTileRows + static_cast<int>(threadIdx.x) % kWarp / 4;
      const uint8_t* from = p.weight + row * p.weight_stride + column;
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        if (i >= 2 * count) break;
        copy_of_line_async(to + slot * p.slot_bytes + i * kThreads * 16, from + i * 8 * p.weight_stride,
                           row + i * 8 < p.n && column < p.k);
      }
      slot = slot + 1 < p.slots ? slot + 1 : 0;
      column += kWarps * kChunk;
      if (column / kChunk * kChunk >= p.k) column = first, ++group;
    }
    commit_copies();
  }
};

// Waits until at most `pending` groups of copies are in flight.
__device__ void wait_until(int pending) {
  switch (pending) {
    case 0:
      return wait_copies<0>();
    case 1:
      return wait_copies<1>();
    case 2:
      return wait_copies<2>();
    case 3:
      return wait_copies<3>();
    case 4:
      return wait_copies<4>();
    case 5:
      return wait_copies<5>();
    case 6:
      return wait_copies<6>();
    default:
      return wait_copies<7>();
  }
}

// D (16 x 8) += A (16 x 32, rows) * B (32 x 8, columns) over a warp. Lane 4 g + t: words of a are rows g, g + 8, g, g + 8, those of b
// are column g, and any four columns of k may be the lane's in a word if they are the same ones in a and b; d as mma_16x8x16
// (tensor_core.cuh) has it. Of integers an instruction. Of E4M3 none on Hopper: two conversions a word and two mma in f16, which
// holds each number exactly.
__device__ void mma_16x8x32(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  LADDER_SM80_ASM(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ void mma_16x8x32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
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
template <class Sum, int octets>
struct WarpSums {
  static constexpr int kColumns = kTiles * kTileRows;
  static constexpr int kStride = kColumns + 4;  // 4 more spread a warp's stores over the banks

  Sum sum[kTiles][octets][4] = {};

  __host__ __device__ static constexpr int bytes(int m) {
    return kWarps * m * kStride * static_cast<int>(sizeof(Sum));
  }

  // A slot's codes, of so many tiles, times those of x at the same columns. Two tiles in turn, as an mma waits for the one before it
  // of the same sums; the second of a last pair may be one that the group does not have, whose sums nobody stores.
  __device__ void multiply(uint32_t slot, int tiles, const uint4 (&x)[octets]) {
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
#pragma unroll
          for (int o = 0; o < octets; ++o) {
            const uint32_t b[2] = {half == 0 ? x[o].x : x[o].z, half == 0 ? x[o].y : x[o].w};
            mma_16x8x32(sum[first + i][o], a, b);
          }
        }
    }
  }

  // To shared memory: [warp][row of x][row of the weight].
  __device__ void store(Sum* sums, int m) const {
    const int warp = threadIdx.x / kWarp, g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int o = 0; o < octets; ++o)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = o * 8 + 2 * t + i % 2, column = tile * kTileRows + g + i / 2 * 8;
          if (row < m) sums[(warp * m + row) * kStride + column] = sum[tile][o][i];
        }
  }
  __device__ static Sum total(const Sum* sums, int m, int row, int column) {
    Sum total = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) total += sums[(warp * m + row) * kStride + column];
    return total;
  }
};

// rows_stream_8bit: codes of x [m, k], up to 32 rows, and of weight [n, k], k in multiples of 16 and rows at multiples of 16 bytes; a
// scale for a row of either; out [m, n] in T or f32. A block per multiprocessor has an even share of the weight's tiles of 16 rows and
// goes through them group by group; its eight warps share the columns. The simple version:
//
//   for each group of tiles of this block:
//     for each 64 columns of this warp:
//       for each tile:  sums += codes of x * codes of the weight      mma
//     add the warps' sums, times both scales
//
// What makes it fast: no code is moved to where an mma wants it. The order of a sum over k is free, so a lane's 16 bytes of a row,
// of x as of the weight, are the operands of two mma as they lie in memory; and codes on both sides need no number made of them
// before the sum is complete. The ring is full before x is there (wait_for_previous_kernel), while x is still being rounded.
template <class T, class Sum, int octets>
__global__ void __launch_bounds__(kThreads, octets == 1 ? 2 : 1) rows_stream_8bit(Product<T> p) {
  using Sums = WarpSums<Sum, octets>;
  extern __shared__ __align__(128) unsigned char shared[];
  allow_next_kernel();
  const Groups groups(p);
  CodeRing<T> ring(p, groups, shared);
#pragma unroll 1
  for (int s = 0; s < p.slots; ++s) ring.copy_next();

  // Rows past the last one are copies of it, which nothing stores.
  const int g = threadIdx.x % kWarp / 4;
  const uint8_t* x_from[octets];
#pragma unroll
  for (int o = 0; o < octets; ++o) x_from[o] = p.x + static_cast<int64_t>(min(o * 8 + g, p.m - 1)) * p.k;
  const auto load_x = [&](int column, uint4(&x)[octets]) {
#pragma unroll
    for (int o = 0; o < octets; ++o)
      x[o] = column < p.k ? *reinterpret_cast<const uint4*>(x_from[o] + column) : uint4{0, 0, 0, 0};
  };
  // A thread writes one column of a group, of every fourth row.
  constexpr int kRowsAtOnce = kThreads / Sums::kColumns, kRounds = ceil_div(8 * octets, kRowsAtOnce);
  const int column = threadIdx.x % Sums::kColumns, first_row = threadIdx.x / Sums::kColumns;

  wait_for_previous_kernel();
  float x_scales[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) x_scales[i] = p.x_scales[min(first_row + i * kRowsAtOnce, p.m - 1)];
  Sum* const sums = reinterpret_cast<Sum*>(shared);
  uint4 next[octets];
  load_x(ring.first, next);
  int slot = 0;
#pragma unroll 1
  for (int group = 0; group < groups.count; ++group) {
    const int first = groups.first_tile(group) * kTileRows, j = first + column;
    const bool writes = column < groups.tiles(group) * kTileRows && j < p.n;
    const float weight_scale = writes ? p.weight_scales[j] : 0.0f;
    const float bias = writes && p.bias != nullptr ? to_float(p.bias[j]) : 0.0f;
    Sums product;
#pragma unroll 1
    for (int at = ring.first; at / kChunk * kChunk < p.k; at += kWarps * kChunk) {
      uint4 x[octets];
#pragma unroll
      for (int o = 0; o < octets; ++o) x[o] = next[o];
      const int following = at + kWarps * kChunk;
      load_x(following / kChunk * kChunk < p.k ? following : ring.first, next);
      wait_until(p.slots - 1);
      product.multiply(ring.to + slot * p.slot_bytes, groups.tiles(group), x);
      ring.copy_next();
      slot = slot + 1 < p.slots ? slot + 1 : 0;
    }
    __syncthreads();  // the sums before have been read, and the ring, if they take its place
    product.store(sums, p.m);
    __syncthreads();
    if (!writes) continue;
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int row = first_row + i * kRowsAtOnce;
      if (row >= p.m) break;
      const Sum sum = Sums::total(sums, p.m, row, column);
      if (p.float_out)
        static_cast<float*>(p.out)[row * p.out_stride + j] =
            scaled_sum<float>(sum, weight_scale, x_scales[i], bias);
      else
        static_cast<T*>(p.out)[row * p.out_stride + j] = scaled_sum<T>(sum, weight_scale, x_scales[i], bias);
    }
  }
}

// Of a block, bytes. With up to eight rows of x two share a multiprocessor; the sums of more rows take some of the second one's
// room, and a block that rounds x finds some still.
constexpr int kHalfOfShared = 113 << 10, kMostShared = 200 << 10;

template <class T, class Sum, int octets>
void launch(const OpContext& ctx, Product<T> p) {
  const int all_tiles = ceil_div(p.n, kTileRows);
  const int blocks = std::min(ctx.cuda->num_multiprocessors(), all_tiles);
  p.tiles = all_tiles / blocks;
  p.one_more = all_tiles % blocks;
  const auto largest_group = [](int tiles) { return ceil_div(tiles, ceil_div(tiles, kTiles)); };
  const int most_tiles = p.tiles + (p.one_more > 0), groups = ceil_div(most_tiles, kTiles);
  p.slot_bytes = std::max(largest_group(p.tiles), largest_group(most_tiles)) * kTileBytes;
  const int sums_bytes = WarpSums<Sum, octets>::bytes(p.m), room = octets == 1 ? kHalfOfShared : kMostShared;
  const int behind =
      p.slot_bytes / kTileBytes % 2 * kTileBytes;  // where the last slot's last pair is read to
  p.ring_at = groups == 1 ? 0 : ceil_div(sums_bytes, 128) * 128;
  p.slots = std::clamp((room - behind - p.ring_at) / p.slot_bytes, 1,
                       std::min(groups * ceil_div(p.k, kWarps * kChunk), kMaxSlots));
  const int bytes = std::max(p.ring_at + p.slots * p.slot_bytes + behind, sums_bytes);
  auto kernel = rows_stream_8bit<T, Sum, octets>;
  ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), bytes);
  launch_kernel(ctx, kernel, static_cast<unsigned>(blocks), kThreads, static_cast<size_t>(bytes), p);
}

template <class T, class Sum>
void launch_for_rows(const OpContext& ctx, const Product<T>& p) {
  if (p.m <= 8)
    launch<T, Sum, 1>(ctx, p);
  else if (p.m <= 16)
    launch<T, Sum, 2>(ctx, p);
  else
    launch<T, Sum, 4>(ctx, p);
}

template <class T>
void launch_product(const OpContext& ctx, const QuantizedMatmulArgs& args, const Tensor& codes,
                    const Tensor& scales) {
  const QuantizedWeight& weight = *args.weight;
  Product<T> p{};
  p.x = cuda_data<uint8_t>(codes);
  p.weight = cuda_data<uint8_t>(weight.codes);
  p.x_scales = cuda_data<float>(scales);
  p.weight_scales = cuda_data<float>(weight.scales);
  p.bias = cuda_data<T>(args.bias);
  p.out = args.out.raw();
  p.float_out = args.out.dtype() == DType::f32;
  p.m = static_cast<int>(args.x.dim(0));
  p.n = static_cast<int>(weight.n);
  p.k = static_cast<int>(weight.k);
  p.weight_stride = weight.codes.stride(0);
  p.out_stride = args.out.stride(0);
  if (args.activations->is_float)
    launch_for_rows<T, float>(ctx, p);
  else
    launch_for_rows<T, int32_t>(ctx, p);
}

}  // namespace

bool quantized_matmul_takes_rows_stream_8bit(const QuantizedMatmulArgs& args) {
  return takes_eight_bit_codes(args) && args.x.dim(0) <= kMaxRows;
}

int64_t quantized_matmul_rows_stream_8bit_workspace(const QuantizedMatmulArgs& args) {
  return args.x.dim(0) * (args.weight->k + 4);
}

void quantized_matmul_rows_stream_8bit(const OpContext& ctx, const QuantizedMatmulArgs& args) {
  std::optional<Arena> own;  // for callers that bring no scratch memory
  Arena& arena = ctx.arena != nullptr ? *ctx.arena : own.emplace(ctx.device);
  ArenaScope scope(arena);
  const Tensor codes = arena.take({args.x.dim(0), args.weight->k}, DType::u8);
  const Tensor scales = arena.take({args.x.dim(0)}, DType::f32);
  quantize_rows_cuda(ctx, args.x, *args.activations, args.input_scale, codes, scales);
  if (args.x.dtype() == DType::f16)
    launch_product<__half>(ctx, args, codes, scales);
  else
    launch_product<__nv_bfloat16>(ctx, args, codes, scales);
}

}  // namespace ladder

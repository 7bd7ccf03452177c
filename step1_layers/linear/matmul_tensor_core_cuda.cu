// The matrix product on the tensor cores, for many rows.
#include "step1_layers/core/packed.h"
#include "step1_layers/core/tensor_core.cuh"
#include "step1_layers/linear/matmul_cuda.cuh"

namespace ladder {

namespace {

// tensor_core (sm_80)
// bf16 or f16, rows of x and weight in whole 16-byte packs. A block computes 128 x 128 outputs, 64 of k at a
// time; each of its eight warps 64 x 32. An mma instruction does 2048 multiply-adds where the rung below does
// 32 per instruction and warp. Tiles come by asynchronous copies, three stages deep, so that the tensor cores
// work on one while the next two are in flight; the swizzle lets ldmatrix read them without bank conflicts.
// Two blocks fit on a multiprocessor. Every output is summed in one fixed order of k: batch invariant.
constexpr int kTile = 128, kDepth = 64, kStages = 3, kThreads = 256;
constexpr int kTileBytes = kTile * kDepth * 2, kStageBytes = 2 * kTileBytes;
constexpr int kSharedBytes = kStages * kStageBytes;
constexpr int kWarpRows = 64, kWarpColumns = 32;

// 128 rows of 64 elements of a matrix, rows and columns past its end as zeros.
template <class T>
__device__ void copy_tile(uint32_t to, const T* from, int64_t stride, int64_t first_row, int64_t rows,
                          int64_t first_column, int64_t columns) {
#pragma unroll
  for (int step = 0; step < kTile * 8 / kThreads; ++step) {
    const int index = step * kThreads + threadIdx.x, row = index / 8, chunk = index % 8;
    const int64_t column = first_column + chunk * 8;
    const bool valid = first_row + row < rows && column < columns;
    copy_async(to + swizzled(row, chunk), valid ? from + (first_row + row) * stride + column : from, valid);
  }
}

}  // namespace

// >>> task 1.4.cuda.mma: the matrix product on the tensor cores
namespace {

template <class T, class Out>
__global__ void __launch_bounds__(kThreads, 2) product_tensor_core(Product<T, Out> p, bool pairs) {
  allow_next_kernel();
  wait_for_previous_kernel();
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t stages = shared_address(shared);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int warp_row = warp / 4 * kWarpRows, warp_column = warp % 4 * kWarpColumns;

  // Eight tiles of rows share a column of the weight before the next one comes: what they read stays in L2.
  constexpr int64_t kGroup = 8;
  const int64_t tiles_m = ceil_div<int64_t>(p.m, kTile), tiles_n = ceil_div<int64_t>(p.n, kTile);
  const int64_t group = blockIdx.x / (kGroup * tiles_n), first_of_group = group * kGroup;
  const int64_t group_rows = tiles_m - first_of_group < kGroup ? tiles_m - first_of_group : kGroup;
  const int64_t in_group = blockIdx.x - group * kGroup * tiles_n;
  const int64_t first_i = (first_of_group + in_group % group_rows) * kTile;
  const int64_t first_j = in_group / group_rows * kTile;

  const auto depth_tiles = static_cast<int>(ceil_div<int64_t>(p.k, kDepth));
  auto fetch = [&](int tile) {
    if (tile < depth_tiles) {
      const uint32_t to = stages + tile % kStages * kStageBytes;
      copy_tile(to, p.x, p.x_stride, first_i, p.m, int64_t{tile} * kDepth, p.k);
      copy_tile(to + kTileBytes, p.weight, p.weight_stride, first_j, p.n, int64_t{tile} * kDepth, p.k);
    }
    commit_copies();
  };

  float sums[4][4][4] = {};  // 4 tiles of 16 rows, 4 tiles of 8 columns
  for (int tile = 0; tile < kStages - 1; ++tile) fetch(tile);
  for (int tile = 0; tile < depth_tiles; ++tile) {
    wait_copies<kStages - 2>();
    __syncthreads();  // the tile is there for all, and all are done with the one whose place is refilled
    fetch(tile + kStages - 1);
    const uint32_t xs = stages + tile % kStages * kStageBytes, ws = xs + kTileBytes;
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step) {
      uint32_t a[4][4], b[4][2];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        load_matrices(a[i], xs + swizzled(warp_row + i * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        uint32_t both[4];  // two tiles of 8 columns, each at k and k + 8
        load_matrices(
            both, ws + swizzled(warp_column + j * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
        b[2 * j][0] = both[0];
        b[2 * j][1] = both[1];
        b[2 * j + 1][0] = both[2];
        b[2 * j + 1][1] = both[3];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) mma_16x8x16<T>(sums[i][j], a[i], b[j]);
    }
  }

  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first_i + warp_row + i * 16 + half * 8 + g;
      if (row >= p.m) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int64_t column = first_j + warp_column + j * 8 + 2 * t;
        float first = sums[i][j][2 * half], second = sums[i][j][2 * half + 1];
        if (pairs && column < p.n) {
          if (p.bias != nullptr) {
            first += to_float(p.bias[column]);
            second += to_float(p.bias[column + 1]);
          }
          Out* to = p.out + row * p.out_stride + column;
          if constexpr (sizeof(Out) == 4)
            *reinterpret_cast<float2*>(to) = float2{first, second};
          else
            *reinterpret_cast<uint32_t*>(to) = pack_pair<Out>(first, second);
        } else {
          if (column < p.n) p.store(row, column, first);
          if (column + 1 < p.n) p.store(row, column + 1, second);
        }
      }
    }
}

}  // namespace

void matmul_cuda_tensor_core(const OpContext& ctx, const MatmulArgs& args) {
  with_product(args, [&](const auto& p) {
    using T = std::remove_cvref_t<decltype(*p.x)>;
    using Out = std::remove_cvref_t<decltype(*p.out)>;
    if constexpr (sizeof(T) == 2) {
      const bool pairs = p.n % 2 == 0 && p.out_stride % 2 == 0 &&
                         reinterpret_cast<uintptr_t>(p.out) % (2 * sizeof(Out)) == 0;
      const int64_t tiles = ceil_div<int64_t>(p.m, kTile) * ceil_div<int64_t>(p.n, kTile);
      auto kernel = product_tensor_core<T, Out>;
      ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), kSharedBytes);
      launch_kernel(ctx, kernel, static_cast<unsigned>(tiles), kThreads, kSharedBytes, p, pairs);
    }
  });
}

// <<< task 1.4.cuda.mma

bool matmul_takes_tensor_core(const MatmulArgs& args) {
  return dtype_size(args.x.dtype()) == 2 && args.x.dim(1) > 0 && is_packed(args.x) && is_packed(args.weight);
}

}  // namespace ladder

#pragma once
// How a block of a product of few rows that is made of tiles of 16 rows of the weight walks over its share, and how its warps add up
// (sparse_stream_cuda.cu).
#include "step1_layers/core/cuda_kernel.cuh"

namespace ladder::stream_tiles {

inline constexpr int kWarps = 8, kThreads = kWarps * kWarp;
inline constexpr int kTileRows = 16, kTiles = 4;  // of a group, at most

// What a block has of the weight, in groups that differ by one unit at most. A unit is a tile; of silu_and_mul a pair of them, of the
// gate's half and the up half.
struct TileGroups {
  int begin, count, of_group, one_more;

  // `block`: of the launch, or which cluster of blocks with the same tiles.
  template <class Product>
  __device__ explicit TileGroups(const Product& p, int block = static_cast<int>(blockIdx.x)) {
    const int units = p.units + (block < p.one_more);
    begin = block * p.units + min(block, p.one_more);
    count = ceil_div(units, kTiles / p.unit_tiles()), of_group = units / count, one_more = units % count;
  }
  __device__ int first_unit(int group) const { return begin + group * of_group + min(group, one_more); }
  __device__ int units(int group) const { return of_group + (group < one_more); }
};

// A warp's sums of a group, as mma_16x8x16 (tensor_core.cuh) has them: of each tile, and of eight rows of x (an octet).
template <class Sum, int octets>
struct TileSums {
  static constexpr int kColumns = kTiles * kTileRows;
  static constexpr int kStride = kColumns + 4;  // 4 more spread a warp's stores over the banks

  Sum sum[kTiles][octets][4] = {};

  __host__ __device__ static constexpr int bytes(int m) {
    return kWarps * m * kStride * static_cast<int>(sizeof(Sum));
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

}  // namespace ladder::stream_tiles

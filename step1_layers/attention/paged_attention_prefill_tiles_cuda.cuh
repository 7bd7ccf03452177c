#pragma once
// What the prefill kernels on mma share: all but how a tile of keys and values comes to shared memory.
#include "step1_layers/attention/paged_attention_prefill_cuda.cuh"
#include "step1_layers/core/tensor_core.cuh"

namespace ladder {

inline constexpr int kTileKeys = 64, kKeyTiles = kTileKeys / 8;

template <int dim>
struct TileShape {
  static constexpr int kRowTiles = dim == 256 ? 1 : 2;  // of 16 rows, of a warp
  static constexpr int kThreads = kPrefillRows / (16 * kRowTiles) * kWarp;
  static constexpr int kBlocks = dim == 256 ? 1 : 2;                                 // of a multiprocessor
  static constexpr int kChunks = dim / 8;                                            // of 16 bytes, in a row
  static constexpr int kCopyRows = kThreads / kChunks, kWarpRows = kWarp / kChunks;  // copied at a time
  static constexpr int kTileBytes = kTileKeys * dim * 2, kQueryBytes = kPrefillRows * dim * 2;
  static constexpr int kShared = kQueryBytes + 4 * kTileBytes;
};

// A row of `dim` elements is cut into parts of 64 elements, 128 bytes, each a swizzled tile of its own.
template <int rows>
__device__ uint32_t place(int row, int chunk) {
  return static_cast<uint32_t>(chunk / 8 * rows * 128) + swizzled(row, chunk % 8);
}

// `Tiles` brings the keys and values: made of (call, line, item, address of kv_tiles); start() begins the copy of the item's first
// tile; take(tile), called by all threads together for one tile after the other, waits for it, begins the next one and returns
// where its keys lie from kv_tiles on. The values lie S::kTileBytes behind them.
template <int dim, class Tiles, class Call>
__device__ void attend_item(const Call& a, const PrefillLine& line, const PrefillItem& item, uint32_t q_tile,
                            PrefillPart<dim>* parts) {
  using S = TileShape<dim>;
  using T = std::remove_const_t<std::remove_pointer_t<decltype(a.q)>>;
  constexpr int kKeys = kTileKeys, kRowTiles = S::kRowTiles, kChunks = S::kChunks, kDimTiles = dim / 8;
  const uint32_t kv_tiles = q_tile + S::kQueryBytes;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const int warp_row = warp * kRowTiles * 16;
  const int chunk = threadIdx.x % kChunks, copy_row = threadIdx.x / kChunks;

#pragma unroll
  for (int step = 0; step < kPrefillRows / S::kCopyRows; ++step) {
    const int row = step * S::kCopyRows + copy_row;
    const int from = row < item.rows ? row : 0;
    copy_async(q_tile + place<kPrefillRows>(row, chunk),
               a.q + (item.first_token + item.token(line, from)) * a.q_token +
                   item.head(line, from) * a.q_head + chunk * 8,
               row < item.rows);
  }

  Tiles tiles(a, line, item, kv_tiles);
  float out[kRowTiles][kDimTiles][4] = {};
  float largest[kRowTiles][2], sum[kRowTiles][2] = {};  // of rows g and g + 8 of each tile of 16
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) largest[i][0] = largest[i][1] = -INFINITY;

  // What this lane reads of a tile: rows as the operands of mma want them, chunk 0 or 1. The other chunks
  // follow by xor, since the tiles are aligned.
  const uint32_t q_lane = q_tile + swizzled(warp_row + lane % 16, lane / 16);
  const uint32_t k_lane = kv_tiles + swizzled(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const uint32_t v_lane = kv_tiles + S::kTileBytes + swizzled(lane % 16, lane / 16);

  tiles.start();
#pragma unroll 1
  for (int tile = item.begin; tile < item.end; ++tile) {
    const uint32_t stage = tiles.take(tile);
    // The last tiles may be past all rows of the warp.
    if (tile * kKeys > item.position(line, warp_row + kRowTiles * 16 - 1)) continue;

    float scores[kRowTiles][kKeyTiles][4] = {};
#pragma unroll
    for (int step = 0; step < dim / 16; ++step) {
      uint32_t queries[kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
        load_matrices(queries[i], (q_lane ^ (step % 4 * 32)) + step / 4 * kPrefillRows * 128 + i * 16 * 128);
#pragma unroll
      for (int j = 0; j < kKeyTiles / 2; ++j) {
        uint32_t k[4];
        load_matrices(k, ((k_lane + stage) ^ (step % 4 * 32)) + step / 4 * kKeys * 128 + j * 16 * 128);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          mma_16x8x16<T>(scores[i][2 * j], queries[i], {k[0], k[1]});
          mma_16x8x16<T>(scores[i][2 * j + 1], queries[i], {k[2], k[3]});
        }
      }
    }

    if ((tile + 1) * kKeys > item.position(line, warp_row) + 1) {  // not every row sees every key of the tile
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int seen = item.position(line, warp_row + i * 16 + half * 8 + g) - tile * kKeys - 2 * t;
#pragma unroll
          for (int j = 0; j < kKeyTiles; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              if (j * 8 + e > seen) scores[i][j][2 * half + e] = -INFINITY;
        }
    }

    float correction[kRowTiles][2];
    bool rescale = false;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float tile_largest = -INFINITY;
#pragma unroll
        for (int j = 0; j < kKeyTiles; ++j)
          tile_largest = fmaxf(tile_largest, fmaxf(scores[i][j][2 * half], scores[i][j][2 * half + 1]));
        tile_largest = warp_max<4>(tile_largest) * a.scale;
        correction[i][half] = 1;
        if (tile_largest > largest[i][half]) {
          correction[i][half] = exp2_fast(largest[i][half] - tile_largest);
          largest[i][half] = tile_largest;
          rescale = true;
        }
      }
    if (__any_sync(kAllLanes, rescale)) {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int d = 0; d < kDimTiles; ++d)
#pragma unroll
          for (int e = 0; e < 4; ++e) out[i][d][e] *= correction[i][e / 2];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) sum[i][half] *= correction[i][half];
    }

#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      uint32_t weights[kRowTiles][4];  // of 16 keys: rows g and g + 8 at the first eight, at the next eight
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          // A row that has seen no key yet (of a part) has weights of 0, not of NaN.
          const float offset = largest[i][half] == -INFINITY ? 0.0f : largest[i][half];
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const float* s = scores[i][2 * step + j] + 2 * half;
            const float p0 = exp2_fast(fmaf(s[0], a.scale, -offset));
            const float p1 = exp2_fast(fmaf(s[1], a.scale, -offset));
            sum[i][half] += p0 + p1;
            weights[i][2 * j + half] = pack_pair<T>(p0, p1);
          }
        }
#pragma unroll
      for (int d = 0; d < kDimTiles / 2; ++d) {
        uint32_t v[4];
        load_matrices<true>(v, ((v_lane + stage) ^ (d % 4 * 32)) + d / 4 * kKeys * 128 + step * 16 * 128);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          mma_16x8x16<T>(out[i][2 * d], weights[i], {v[0], v[1]});
          mma_16x8x16<T>(out[i][2 * d + 1], weights[i], {v[2], v[3]});
        }
      }
    }
  }

  wait_copies<0>();  // a part may have no tile, but the queries are still being copied
  if (item.parts > 1) {
    PrefillPart<dim>& part = parts[int64_t{item.index} * line.parts + item.part];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row + i * 16 + half * 8 + g;
        const float total = warp_sum<4>(sum[i][half]);
        if (t == 0) {
          part.largest[row] = largest[i][half];
          part.sum[row] = total;
        }
#pragma unroll
        for (int d = 0; d < kDimTiles; ++d)
          *reinterpret_cast<float2*>(part.out[row] + d * 8 + 2 * t) = {out[i][d][2 * half],
                                                                       out[i][d][2 * half + 1]};
      }
    return;
  }

  // Through the place of the warp's queries, so that rows are written in whole packs.
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + i * 16 + half * 8 + g;
      const float total = warp_sum<4>(sum[i][half]), factor = 1 / total;
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d)
        store_shared(q_tile + place<kPrefillRows>(row, d) + t * 4,
                     pack_pair<T>(out[i][d][2 * half] * factor, out[i][d][2 * half + 1] * factor));
      if (t == 0 && row < item.rows)
        a.store_lse(item.first_token + item.token(line, row), item.head(line, row), largest[i][half], total);
    }
  __syncwarp();
#pragma unroll 4
  for (int index = lane; index < kRowTiles * 16 * kChunks; index += kWarp) {
    const int row = warp_row + index / kChunks, c = index % kChunks;
    if (row >= item.rows) break;
    const int64_t token = item.first_token + item.token(line, row);
    const int head = item.head(line, row);
    *reinterpret_cast<uint4*>(a.out + token * a.out_token + head * a.out_head + c * 8) =
        load_shared(q_tile + place<kPrefillRows>(row, c));
  }
}

template <int dim, class Tiles, class Call>
__global__ void __launch_bounds__(TileShape<dim>::kThreads, TileShape<dim>::kBlocks)
    attention_tensor_core(Call a, PrefillLine line, PrefillPart<dim>* parts) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ PrefillItem item;  // its registers are worth more for other things
  allow_next_kernel();
  wait_for_previous_kernel();
  PrefillItem found;
  for (int unit = static_cast<int>(blockIdx.x); find_item(a, line, unit, found);
       unit += static_cast<int>(gridDim.x)) {
    if (found.part >= found.parts) continue;
    __syncthreads();  // all are done with the item before
    if (threadIdx.x == 0) item = found;
    __syncthreads();
    attend_item<dim, Tiles>(a, line, item, shared_address(shared), parts);
  }
}

template <int dim, class Tiles, class Call>
void launch_tensor_core(const OpContext& ctx, const Call& a, int64_t max_seq_len, bool with_single) {
  using S = TileShape<dim>;
  auto kernel = attention_tensor_core<dim, Tiles, Call>;
  ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), S::kShared);
  run_prefill<dim>(ctx, a, kTileKeys, with_single, !with_single, max_seq_len, S::kBlocks,
                   [&](const PrefillLine& line, int64_t blocks, PrefillPart<dim>* parts) {
                     launch_kernel(ctx, kernel, static_cast<unsigned>(blocks), S::kThreads, S::kShared, a,
                                   line, parts);
                   });
}

}  // namespace ladder

#pragma once
// The experts of few tokens each, in codes: the sibling of rows_stream (rows_stream_kernel.cuh) and of the dense experts' stream
// (step1_layers/moe/experts_stream_cuda.cu). A file per type of codes launches it, as they compile slowly.
//
// stream (sm_90): x and activated values in bf16 or f16, rows of whole 16-byte packs; both matrices in records, an expert's rows in
// whole tiles of 16. For each of the two products:
//
//   for each tile of up to 8 or 16 tokens of one expert (tile_plan_cuda.h), for each unit of that expert's rows:   a block
//     for each record's columns of this warp:  total += scale * (codes * x - zero * sum of x)       mma
//     add the warps' totals; gate and up: silu(gate) * up; down: times the token's weight
//
// A unit of gate and up is two tiles of 16 rows of the weight, the gate's and the up's of the same values. Records come through
// rows_stream's ring: a thread copies what it multiplies itself. A warp has few records of a row here (k of 2048 is 16, of eight warps),
// so as many slots as it has are asked for before anything else happens, and a multiprocessor has two or three blocks: all its bytes are
// on their way at once. The down product asks for them before the gate's and up's has ended.
#include <algorithm>

#include "step1_layers/moe/experts_cuda.cuh"
#include "step1_layers/moe/tile_plan_cuda.h"
#include "step8_advanced/quantization/kernels/experts_stream_cuda.h"
#include "step8_advanced/quantization/kernels/pending_copies.cuh"
#include "step8_advanced/quantization/kernels/rows_stream.cuh"
#include "step8_advanced/quantization/kernels/rows_stream_epilogue.cuh"
#include "step8_advanced/quantization/kernels/weight_records.h"

namespace ladder::records {

inline constexpr int kMaxExpertSlots = 2;

template <class T>
struct ExpertsProduct {
  const T* x;
  int64_t x_stride;
  int pairs_of_row;  // pair p takes row p / pairs_of_row of x
  const unsigned char* records;
  int64_t tile_stride;  // bytes from one tile's records to the next one's
  float unit;           // of the scales
  int k, blocks_of_k;   // records of a tile
  int units, tiles;     // of an expert
  bool paired;          // gate and up: a unit is two tiles
  const int32_t* expert_ids;
  const float* weights;  // of pairs
  int experts;
  TilePlan plan;  // without tiles, tile p is pair p
  int slots;
  void* out;        // paired: T [pairs, columns]; else float [pairs, columns], with their weights
  int out_columns;  // of a row

  __host__ __device__ int unit_tiles() const { return paired ? 2 : 1; }
};

template <class K>
__global__ void __launch_bounds__(kThreads, K::octets == 1 ? 2 : 1)
    experts_stream_kernel(const __grid_constant__ ExpertsProduct<typename K::T> p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using T = typename K::T;
  extern __shared__ __align__(128) unsigned char shared[];
  // The plan is an earlier kernel's. Whoever follows the first product reads it without waiting.
  if (p.paired) wait_for_previous_kernel();
  allow_next_kernel();
  const auto pair_at = [&](int place) { return p.plan.pairs != nullptr ? p.plan.pairs[place] : place; };
  const int index = static_cast<int>(blockIdx.x);
  Tile tile{};
  if (p.plan.tiles != nullptr) {
    tile = p.plan.tiles[index];
  } else {
    const int expert = p.expert_ids[index];
    const bool here = expert >= 0 && expert < p.experts;
    tile = {expert, index, here ? 1 : 0, 0};
  }
  if (tile.rows == 0) {
    if (!p.paired) wait_for_previous_kernel();
    return;
  }

  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int units_of_block = K::tiles / p.unit_tiles(),
            first_unit = static_cast<int>(blockIdx.y) * units_of_block;
  const int count = min(units_of_block, p.units - first_unit) * p.unit_tiles();  // tiles of this block
  const unsigned char* of_expert = p.records + tile.expert * p.tiles * p.tile_stride;
  const uint32_t codes_at = shared_address(shared) + threadIdx.x * 16;
  const auto fetch = [&](int r, int slot) {
    if (r < p.blocks_of_k) {
#pragma unroll
      for (int i = 0; i < K::tiles; ++i) {
        if (i >= count) break;
        const int row_tile = p.paired ? i % 2 * p.units + first_unit + i / 2 : first_unit + i;
        const unsigned char* record =
            of_expert + row_tile * p.tile_stride + static_cast<int64_t>(r) * K::record_bytes;
        const uint32_t to = codes_at + slot * K::slot_bytes + i * K::tile_bytes;
#pragma unroll
        for (int v = 0; v < 2 * K::C::kVectors; ++v)
          copy_of_line_async(to + v * kThreads * 16, record + (v * kWarp + lane) * 16, true);
#pragma unroll
        for (int group = 0; group < K::groups; ++group)
          copy_small_async<K::Rows::kBytes>(
              to + RecordRing<K, int>::rows_at() + group * kThreads * K::Rows::kBytes,
              record + K::codes_bytes + (group * 8 + lane / 4) * K::Rows::kBytes);
      }
    }
    commit_copies();
  };
#pragma unroll 1
  for (int slot = 0; slot < p.slots; ++slot) fetch(warp + slot * kWarps, slot);
  if (!p.paired) wait_for_previous_kernel();

  XRows<K> rows(p.x, 0, 1, p.k);
#pragma unroll
  for (int o = 0; o < K::octets; ++o) {
    const int row = min(o * 8 + lane / 4, tile.rows - 1);
    rows.rows[o] += pair_at(tile.first + row) / p.pairs_of_row * p.x_stride;
  }
  WarpProduct<K> product;
  XColumns<K::octets> next;
  rows.load(warp, next);
  int slot = 0;
#pragma unroll 1
  for (int r = warp; r < p.blocks_of_k; r += kWarps) {
    const XColumns<K::octets> columns = next.template of_codes<typename K::C>();
    rows.load(r + kWarps, next);
    wait_some_copies<0, kMaxExpertSlots - 1>(p.slots - 1);
    product.template multiply<0>(codes_at + slot * K::slot_bytes, columns);
    fetch(r + p.slots * kWarps, slot);
    slot = slot + 1 < p.slots ? slot + 1 : 0;
  }
  __syncthreads();  // the sums take the ring's place
  const WarpSums<K> sums{reinterpret_cast<float*>(shared), tile.rows};
  sums.store(product.total);
  __syncthreads();
  const int columns = count / p.unit_tiles() * kTileRows;  // of out
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) * kFour; i < tile.rows * columns; i += kThreads * kFour) {
    const int row = i / columns, column = i % columns, pair = pair_at(tile.first + row);
    const int64_t to = int64_t{pair} * p.out_columns + first_unit * kTileRows + column;
    const int gate = column / kTileRows * 2 * kTileRows + column % kTileRows;
    const float4 sum = sums.total(row, p.paired ? gate : column);
    const float4 up = p.paired ? sums.total(row, gate + kTileRows) : float4{};
    const float of_sum[kFour] = {sum.x, sum.y, sum.z, sum.w}, of_up[kFour] = {up.x, up.y, up.z, up.w};
#pragma unroll
    for (int e = 0; e < kFour; ++e) {
      if (p.paired)
        static_cast<T*>(p.out)[to + e] =
            from_float<T>(silu_and_mul<T>(p.unit * of_sum[e], p.unit * of_up[e]));
      else
        static_cast<float*>(p.out)[to + e] = p.weights[pair] * (p.unit * of_sum[e]);
    }
  }
#endif
}

template <class K>
void launch_experts_stream(const OpContext& ctx, ExpertsProduct<typename K::T> p) {
  p.tile_stride = int64_t{p.blocks_of_k} * K::record_bytes;
  p.slots = std::min(ceil_div(p.blocks_of_k, kWarps), kMaxExpertSlots);
  const int sums = WarpSums<K>::size(K::octets * 8) * static_cast<int>(sizeof(float));
  const auto bytes = static_cast<size_t>(std::max(p.slots * K::slot_bytes, sums));
  auto kernel = experts_stream_kernel<K>;
  ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), static_cast<int>(bytes));
  const dim3 grid(static_cast<unsigned>(p.plan.max_tiles),
                  static_cast<unsigned>(ceil_div(p.units, K::tiles / p.unit_tiles())));
  launch_kernel(ctx, kernel, grid, kThreads, bytes, p);
}

// One of the two products, of a weight of this type.
template <WeightCodes type, bool zeros, int... groups>
void launch_experts_stream(const OpContext& ctx, const ExpertsStreamArgs& args) {
  with_cuda_type(args.x.dtype(), [&](auto tag) {
    using T = decltype(tag);
    if constexpr (sizeof(T) == 2) {
      const QuantizedWeight& weight = *args.weight;
      ExpertsProduct<T> p{};
      p.x = cuda_data<T>(args.x);
      p.x_stride = args.x.stride(0);
      p.pairs_of_row = args.pairs_of_row;
      p.records = cuda_data<unsigned char>(weight.records.bytes);
      p.unit = weight.records.unit * Codes<T, type>::kUnit;
      p.k = static_cast<int>(weight.k);
      p.blocks_of_k = static_cast<int>(weight.records.bytes.dim(1));
      p.paired = args.paired;
      p.tiles = static_cast<int>(weight.n / args.experts) / kTileRows;
      p.units = p.tiles / p.unit_tiles();
      p.expert_ids = cuda_data<int32_t>(args.expert_ids);
      p.weights = cuda_data<float>(args.weights);
      p.experts = static_cast<int>(args.experts);
      p.plan = args.plan;
      p.out = args.out.raw();
      p.out_columns = static_cast<int>(args.out.dim(1));
      constexpr int kTiles = type == WeightCodes::int4 ? 4 : 2;
      const int of_record = record_layout(weight).groups;
      const auto launch_groups = [&](auto count) {
        constexpr int kGroups = decltype(count)::value;
        if (of_record != kGroups) return;
        if (args.tokens_of_tile == 8)
          launch_experts_stream<Kind<T, type, 1, kGroups, zeros, kTiles, false>>(ctx, p);
        else
          launch_experts_stream<Kind<T, type, 2, kGroups, zeros, kTiles, false>>(ctx, p);
      };
      (launch_groups(std::integral_constant<int, groups>{}), ...);
    }
  });
}

}  // namespace ladder::records

#include "step1_layers/moe/tile_plan_cuda.h"

#include <algorithm>

#include "step1_layers/core/cluster.cuh"

namespace ladder {

namespace {

constexpr int kPlanThreads = 1024;
// From so many pairs on, a cluster of blocks shares them: shared memory counts about one pair a clock, 71 us of 65,536 pairs
// for one block (H200).
constexpr int kManyPairs = 8192, kPlanBlocks = 8;

int max_tiles(int64_t pairs, int64_t experts, int rows) {
  return static_cast<int>(std::min(pairs, experts) + pairs / rows);
}

// The sums over the threads before this one of a block of kPlanThreads; `all`: over all of them.
__device__ int2 sums_before(int2 value, int2& all) {
  __shared__ int2 warps[kPlanThreads / kWarp];
  auto sum_up = [](int2 sum) {  // over the lanes up to this one
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int2 before = {__shfl_up_sync(kAllLanes, sum.x, offset),
                           __shfl_up_sync(kAllLanes, sum.y, offset)};
      if (lane >= offset) sum = {sum.x + before.x, sum.y + before.y};
    }
    return sum;
  };
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int2 sum = sum_up(value);
  if (lane == kWarp - 1) warps[warp] = sum;
  __syncthreads();
  if (warp == 0) warps[lane] = sum_up(warps[lane]);
  __syncthreads();
  const int2 before = warp > 0 ? warps[warp - 1] : int2{0, 0};
  all = warps[kPlanThreads / kWarp - 1];
  return {before.x + sum.x - value.x, before.y + sum.y - value.y};
}

// Calls use(pair, expert) for this thread's share of the pairs from `begin` to `end` that have an expert here. Some ids are
// asked for before the first is used: few blocks have little else to do while they wait for memory.
template <class Use>
__device__ void for_each_pair(const int32_t* expert_ids, int begin, int end, int experts, Use&& use) {
  constexpr int kAtOnce = 8;
  for (int first = begin + static_cast<int>(threadIdx.x); first < end; first += kAtOnce * kPlanThreads) {
    int ids[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int pair = first + i * kPlanThreads;
      ids[i] = pair < end ? expert_ids[pair] : -1;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (ids[i] >= 0 && ids[i] < experts) use(first + i * kPlanThreads, ids[i]);
  }
}

// A block, or the blocks of a cluster with a piece of the pairs each: a histogram of them in shared memory, a thread per
// expert that finds where its pairs and its tiles begin, and the pairs put in their places.
template <int blocks>
__global__ void LADDER_CLUSTER_OF(blocks) __launch_bounds__(kPlanThreads)
    plan_tiles_kernel(const int32_t* expert_ids, int num_pairs, int experts, int rows, Tile* tiles,
                      int num_tiles, int32_t* pairs) {
  __shared__ int counts[kMaxPlannedExperts];
  allow_next_kernel();
  const int thread = static_cast<int>(threadIdx.x), rank = blocks > 1 ? cluster_rank() : 0;
  const int piece = ceil_div(num_pairs, blocks);
  const int begin = rank * piece, end = min(begin + piece, num_pairs);
  auto sync = [] {
    if constexpr (blocks > 1)
      cluster_sync();
    else
      __syncthreads();
  };
  counts[thread] = 0;
  __syncthreads();
  wait_for_previous_kernel();
  for_each_pair(expert_ids, begin, end, experts, [&](int, int expert) { atomicAdd(&counts[expert], 1); });
  sync();

  int count = counts[thread], in_blocks_before = 0;
  if constexpr (blocks > 1) {
    count = 0;
    for (int block = 0; block < blocks; ++block) {
      const int there = in_block(counts, block)[thread];
      count += there;
      if (block < rank) in_blocks_before += there;
    }
    cluster_sync();  // all have read
  }
  const int my_tiles = (count + rows - 1) / rows;
  int2 all;
  const auto [first, first_tile] = sums_before({count, my_tiles}, all);
  if (rank == 0)
    for (int i = 0; i < my_tiles; ++i)
      tiles[first_tile + i] = {thread, first + i * rows, min(rows, count - i * rows), 0};
  counts[thread] = first + in_blocks_before;  // from here on: where its next pair goes
  __syncthreads();

  if (rank == 0)
    for (int tile = all.y + thread; tile < num_tiles; tile += kPlanThreads) tiles[tile] = {-1, 0, 0, 0};
  for_each_pair(expert_ids, begin, end, experts,
                [&](int pair, int expert) { pairs[atomicAdd(&counts[expert], 1)] = pair; });
}

}  // namespace

TilePlan plan_tiles(const OpContext& ctx, const Tensor& expert_ids, int64_t experts, int rows) {
  const int64_t num_pairs = expert_ids.numel();
  const int num_tiles = max_tiles(num_pairs, experts, rows);
  const Tensor tiles = ctx.arena->take({num_tiles, 4}, DType::i32);
  const Tensor pairs = ctx.arena->take({num_pairs}, DType::i32);
  const bool many = num_pairs >= kManyPairs && ctx.device_arch >= 90;
  launch_kernel(ctx, many ? plan_tiles_kernel<kPlanBlocks> : plan_tiles_kernel<1>, many ? kPlanBlocks : 1,
                kPlanThreads, 0, cuda_data<int32_t>(expert_ids), static_cast<int>(num_pairs),
                static_cast<int>(experts), rows, cuda_data<Tile>(tiles), num_tiles,
                cuda_data<int32_t>(pairs));
  return {cuda_data<Tile>(tiles), cuda_data<int32_t>(pairs), num_tiles};
}

}  // namespace ladder

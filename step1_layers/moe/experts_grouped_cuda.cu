// The experts of many tokens: products of one expert after the other, in one launch.
#include "step1_layers/core/packed.h"
#include "step1_layers/core/wgmma.cuh"
#include "step1_layers/moe/experts_cuda.cuh"
#include "step1_layers/moe/tile_plan_cuda.h"

namespace ladder {

namespace {

// grouped (sm_90a)
// bf16 or f16, rows in whole 16-byte packs. A block multiplies a tile of an expert's tokens, gathered from wherever they
// stand, with some rows of that expert's weights, on Hopper's tensor cores: tokens from registers, weights from shared
// memory, where asynchronous copies bring both, some stages ahead. In the first product the rows of gate and up alternate
// by eights, so that a thread ends up with both values of a column: SiLU needs no exchange, and the [pairs, 2 * width]
// values in between are never written. A block's two warpgroups have 64 tokens each and the same 128 rows of weights.
constexpr int kThreads = 2 * kWarpgroup;
constexpr int kDepth = 64;  // elements of the sum in a stage: rows of 128 bytes
constexpr int kChunks = kDepth / 8;
constexpr int kRowsAtOnce =
    kThreads / kChunks;  // of a tile, that the block's threads copy with one instruction

constexpr int kTokens = 128, kRows = 128;  // of a tile; rows of the weights
constexpr int kTokenBytes = kTokens * kDepth * 2, kRowBytes = kRows * kDepth * 2;
constexpr int kStageBytes = kTokenBytes + kRowBytes;
constexpr int kBlocks = 2, kStages = 3;                     // of a multiprocessor; of a block
constexpr int kSharedBytes = kStages * kStageBytes + 1024;  // tiles stand at multiples of 1024

// d = tokens * rows^T for this thread's warpgroup. token(i) and row(i) are the addresses of rows i of the tiles, nullptr
// where there is none, which then counts as zeros.
template <class T, class Token, class Row>
__device__ void multiply(float (&d)[64], Token&& token, Row&& row, int length) {
  extern __shared__ unsigned char shared[];
  const uint32_t stages = (shared_address(shared) + 1023) & ~1023u;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;

  const int chunk = thread % kChunks, first_row = thread / kChunks;
  constexpr int kTokenSteps = kTokens / kRowsAtOnce, kRowSteps = kRows / kRowsAtOnce;
  const T *tokens[kTokenSteps], *rows[kRowSteps];
#pragma unroll
  for (int i = 0; i < kTokenSteps; ++i) tokens[i] = token(first_row + i * kRowsAtOnce);
#pragma unroll
  for (int i = 0; i < kRowSteps; ++i) rows[i] = row(first_row + i * kRowsAtOnce);
  auto copy = [&](uint32_t to, const T* from, int column) {
    const bool valid = from != nullptr && column < length;
    copy_async(to, valid ? from + column : nullptr, valid);
  };
  const int parts = ceil_div(length, kDepth);
  auto fetch = [&](int part) {
    if (part < parts) {
      const uint32_t to = stages + part % kStages * kStageBytes;
      const int column = part * kDepth + chunk * 8;
#pragma unroll
      for (int i = 0; i < kTokenSteps; ++i)
        copy(to + swizzled(first_row + i * kRowsAtOnce, chunk), tokens[i], column);
#pragma unroll
      for (int i = 0; i < kRowSteps; ++i)
        copy(to + kTokenBytes + swizzled(first_row + i * kRowsAtOnce, chunk), rows[i], column);
    }
    commit_copies();
  };

  for (int part = 0; part < kStages - 1; ++part) fetch(part);
  for (int part = 0; part < parts; ++part) {
    wait_copies<kStages - 2>();
    fence_for_wgmma();
    __syncthreads();  // the part is there for all, and all are done with the one whose place is refilled
    fetch(part + kStages - 1);
    const uint32_t at = stages + part % kStages * kStageBytes;
    uint32_t a[kDepth / 16][4];
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step)
      load_matrices(a[step], at + swizzled(thread / kWarp * 16 + lane % 16, step * 2 + lane / 16));
    const uint64_t b = wgmma_tile(at + kTokenBytes);
    keep_in_place(a);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step)
      wgmma_64x128x16<false, T>(d, a[step], b + step * 2, part > 0 || step > 0);
    wgmma_commit();
    wgmma_wait<0>();
    keep_in_place(d);
    keep_in_place(a);
  }
}

// Calls use(row of the tile, octet of its 128 columns, column in there, index into d) for the pairs of values that this thread
// has.
template <class Use>
__device__ void for_each_value(Use&& use) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  const int row = thread / kWarp * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int tile = 0; tile < 16; ++tile) use(row + half * 8, tile, lane % 4 * 2, 4 * tile + 2 * half);
}

// activated [places of the plan, width]
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    activate_grouped(Experts<T> e, TilePlan plan, T* activated) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const Tile tile = plan.tiles[blockIdx.x];
  if (tile.rows == 0) return;
  const int first_column = static_cast<int>(blockIdx.y) * (kRows / 2);
  auto token = [&](int row) -> const T* {
    return row < tile.rows ? e.x + plan.pairs[tile.first + row] / e.top_k * e.x_stride : nullptr;
  };
  auto weight = [&](int row) -> const T* {
    const int column = first_column + row / 16 * 8 + row % 8;
    if (column >= e.width) return nullptr;
    return row / 8 % 2 == 0 ? e.gate_row(tile.expert, column) : e.up_row(tile.expert, column);
  };
  float d[64] = {};
  multiply<T>(d, token, weight, e.hidden);
  for_each_value([&](int row, int octet, int offset, int i) {
    if (octet % 2 != 0 || row >= tile.rows) return;
    const int column = first_column + octet / 2 * 8 + offset;
    if (column < e.width)
      *reinterpret_cast<uint32_t*>(activated + int64_t{tile.first + row} * e.width + column) =
          pack_pair<T>(silu_and_mul<T>(d[i], d[i + 4]), silu_and_mul<T>(d[i + 1], d[i + 5]));
  });
}

// results [pairs, hidden], with their weights
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    project_grouped(Experts<T> e, TilePlan plan, const T* activated, T* results) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const Tile tile = plan.tiles[blockIdx.x];
  if (tile.rows == 0) return;
  const int first_column = static_cast<int>(blockIdx.y) * kRows;
  auto token = [&](int row) -> const T* {
    return row < tile.rows ? activated + int64_t{tile.first + row} * e.width : nullptr;
  };
  auto weight = [&](int row) -> const T* {
    return first_column + row < e.hidden ? e.down_row(tile.expert, first_column + row) : nullptr;
  };
  float d[64] = {};
  multiply<T>(d, token, weight, e.width);
  for_each_value([&](int row, int octet, int offset, int i) {
    const int column = first_column + octet * 8 + offset;
    if (row >= tile.rows || column >= e.hidden) return;
    const int pair = plan.pairs[tile.first + row];
    *reinterpret_cast<uint32_t*>(results + int64_t{pair} * e.hidden + column) =
        pack_pair<T>(e.weights[pair] * d[i], e.weights[pair] * d[i + 1]);
  });
}

template <class T>
void run_grouped(const OpContext& ctx, const MoeExpertsArgs& args) {
  const Experts<T> e = experts_of<T>(args);
  ArenaScope scope(*ctx.arena);
  const TilePlan plan = plan_tiles(ctx, args.expert_ids, e.experts, kTokens);
  const Tensor activated = ctx.arena->take({e.pairs(), e.width}, args.x.dtype());
  const Tensor results = ctx.arena->take({e.pairs(), e.hidden}, args.x.dtype());
  auto launch = [&](auto kernel, int columns, auto... tensors) {
    ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), kSharedBytes);
    const dim3 grid(static_cast<unsigned>(plan.max_tiles), static_cast<unsigned>(ceil_div(columns, kRows)));
    launch_kernel(ctx, kernel, grid, kThreads, kSharedBytes, e, plan, tensors...);
  };
  launch(activate_grouped<T>, 2 * e.width, cuda_data<T>(activated));
  launch(project_grouped<T>, e.hidden, cuda_data<T>(activated), cuda_data<T>(results));
  combine_results(ctx, args.expert_ids, e.experts, results, args.out);
}

}  // namespace

void moe_experts_cuda_grouped(const OpContext& ctx, const MoeExpertsArgs& args) {
  with_cuda_type(args.x.dtype(), [&](auto tag) {
    using T = decltype(tag);
    if constexpr (sizeof(T) == 2) run_grouped<T>(ctx, args);
  });
}

bool moe_experts_takes_grouped(const MoeExpertsArgs& args) {
  return dtype_size(args.x.dtype()) == 2 && is_packed(args.x) && is_packed(args.gate_up) &&
         is_packed(args.down) && is_packed(args.out) && args.gate_up.dim(0) <= kMaxPlannedExperts;
}

}  // namespace ladder

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
// values in between are never written. A block's two warpgroups have, of many tokens per expert, 64 tokens each and the
// same 128 rows of weights; of few, the same 64 tokens and 128 rows each, so that fewer rows of a tile stay empty.
constexpr int kThreads = 2 * kWarpgroup;
constexpr int kDepth = 64;  // elements of the sum in a stage: rows of 128 bytes
constexpr int kChunks = kDepth / 8;
constexpr int kRowsAtOnce =
    kThreads / kChunks;  // of a tile, that the block's threads copy with one instruction

template <int token_groups>  // warpgroups with tokens of their own: 1 or 2
struct Shape {
  static constexpr int kTokens = 64 * token_groups;
  static constexpr int kRows = 128 * (2 / token_groups);  // of the weights
  static constexpr int kTokenBytes = kTokens * kDepth * 2, kRowBytes = kRows * kDepth * 2;
  static constexpr int kStageBytes = kTokenBytes + kRowBytes;
  static constexpr int kBlocks = token_groups;  // of a multiprocessor
  static constexpr int kStages = token_groups == 2 ? 3 : 5;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;  // tiles stand at multiples of 1024
};

// d = tokens * rows^T for this thread's warpgroup. token(i) and row(i) are the addresses of rows i of the tiles, nullptr
// where there is none, which then counts as zeros.
template <int token_groups, class T, class Token, class Row>
__device__ void multiply(float (&d)[64], Token&& token, Row&& row, int length) {
  using S = Shape<token_groups>;
  extern __shared__ unsigned char shared[];
  const uint32_t stages = (shared_address(shared) + 1023) & ~1023u;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  const int group = thread / kWarpgroup, warp = thread % kWarpgroup / kWarp;
  const int my_tokens = token_groups == 2 ? group * 64 : 0, my_rows = token_groups == 2 ? 0 : group * 128;

  const int chunk = thread % kChunks, first_row = thread / kChunks;
  constexpr int kTokenSteps = S::kTokens / kRowsAtOnce, kRowSteps = S::kRows / kRowsAtOnce;
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
      const uint32_t to = stages + part % S::kStages * S::kStageBytes;
      const int column = part * kDepth + chunk * 8;
#pragma unroll
      for (int i = 0; i < kTokenSteps; ++i)
        copy(to + swizzled(first_row + i * kRowsAtOnce, chunk), tokens[i], column);
#pragma unroll
      for (int i = 0; i < kRowSteps; ++i)
        copy(to + S::kTokenBytes + swizzled(first_row + i * kRowsAtOnce, chunk), rows[i], column);
    }
    commit_copies();
  };

  for (int part = 0; part < S::kStages - 1; ++part) fetch(part);
  for (int part = 0; part < parts; ++part) {
    wait_copies<S::kStages - 2>();
    fence_for_wgmma();
    __syncthreads();  // the part is there for all, and all are done with the one whose place is refilled
    fetch(part + S::kStages - 1);
    const uint32_t at = stages + part % S::kStages * S::kStageBytes;
    uint32_t a[kDepth / 16][4];
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step)
      load_matrices(a[step], at + swizzled(my_tokens + warp * 16 + lane % 16, step * 2 + lane / 16));
    const uint64_t b = wgmma_tile(at + S::kTokenBytes + my_rows * 128);
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step) keep_in_place(a[step]);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step)
      wgmma_64x128x16<false, T>(d, a[step], b + step * 2, part > 0 || step > 0);
    wgmma_commit();
    wgmma_wait<0>();
    keep_in_place(d);
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step) keep_in_place(a[step]);
  }
}

// Calls use(row of the tile, column of the warpgroup's 128, index into d) for the pairs of values that this thread has.
template <int token_groups, class Use>
__device__ void for_each_value(Use&& use) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  const int row = (token_groups == 2 ? thread / kWarp : thread % kWarpgroup / kWarp) * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int tile = 0; tile < 16; ++tile) use(row + half * 8, tile, lane % 4 * 2, 4 * tile + 2 * half);
}

// activated [places of the plan, width]
template <class T, int token_groups>
__global__ void __launch_bounds__(kThreads, Shape<token_groups>::kBlocks)
    activate_grouped(Experts<T> e, TilePlan plan, T* activated) {
  using S = Shape<token_groups>;
  allow_next_kernel();
  wait_for_previous_kernel();
  const Tile tile = plan.tiles[blockIdx.x];
  if (tile.rows == 0) return;
  const int first_column = static_cast<int>(blockIdx.y) * (S::kRows / 2);
  auto token = [&](int row) -> const T* {
    return row < tile.rows ? e.x + plan.pairs[tile.first + row] / e.top_k * e.x_stride : nullptr;
  };
  auto weight = [&](int row) -> const T* {
    const int column = first_column + row / 16 * 8 + row % 8;
    if (column >= e.width) return nullptr;
    return row / 8 % 2 == 0 ? e.gate_row(tile.expert, column) : e.up_row(tile.expert, column);
  };
  float d[64] = {};
  multiply<token_groups, T>(d, token, weight, e.hidden);
  const int group_column = token_groups == 2 ? 0 : static_cast<int>(threadIdx.x) / kWarpgroup * 64;
  for_each_value<token_groups>([&](int row, int octet, int offset, int i) {
    if (octet % 2 != 0 || row >= tile.rows) return;
    const int column = first_column + group_column + octet / 2 * 8 + offset;
    if (column < e.width)
      *reinterpret_cast<uint32_t*>(activated + int64_t{tile.first + row} * e.width + column) =
          pack_pair<T>(silu_and_mul<T>(d[i], d[i + 4]), silu_and_mul<T>(d[i + 1], d[i + 5]));
  });
}

// results [pairs, hidden], with their weights
template <class T, int token_groups>
__global__ void __launch_bounds__(kThreads, Shape<token_groups>::kBlocks)
    project_grouped(Experts<T> e, TilePlan plan, const T* activated, T* results) {
  using S = Shape<token_groups>;
  allow_next_kernel();
  wait_for_previous_kernel();
  const Tile tile = plan.tiles[blockIdx.x];
  if (tile.rows == 0) return;
  const int first_column = static_cast<int>(blockIdx.y) * S::kRows;
  auto token = [&](int row) -> const T* {
    return row < tile.rows ? activated + int64_t{tile.first + row} * e.width : nullptr;
  };
  auto weight = [&](int row) -> const T* {
    return first_column + row < e.hidden ? e.down_row(tile.expert, first_column + row) : nullptr;
  };
  float d[64] = {};
  multiply<token_groups, T>(d, token, weight, e.width);
  const int group_column = token_groups == 2 ? 0 : static_cast<int>(threadIdx.x) / kWarpgroup * 128;
  for_each_value<token_groups>([&](int row, int octet, int offset, int i) {
    const int column = first_column + group_column + octet * 8 + offset;
    if (row >= tile.rows || column >= e.hidden) return;
    const int pair = plan.pairs[tile.first + row];
    *reinterpret_cast<uint32_t*>(results + int64_t{pair} * e.hidden + column) =
        pack_pair<T>(e.weights[pair] * d[i], e.weights[pair] * d[i + 1]);
  });
}

template <class T, int token_groups>
void run_grouped(const OpContext& ctx, const MoeExpertsArgs& args) {
  using S = Shape<token_groups>;
  const Experts<T> e = experts_of<T>(args);
  ArenaScope scope(*ctx.arena);
  const TilePlan plan = plan_tiles(ctx, args, S::kTokens);
  const Tensor activated = ctx.arena->take({e.pairs(), e.width}, args.x.dtype());
  const Tensor results = ctx.arena->take({e.pairs(), e.hidden}, args.x.dtype());
  auto launch = [&](auto kernel, int columns, auto... tensors) {
    ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), S::kSharedBytes);
    const dim3 grid(static_cast<unsigned>(plan.max_tiles),
                    static_cast<unsigned>(ceil_div(columns, S::kRows)));
    launch_kernel(ctx, kernel, grid, kThreads, S::kSharedBytes, e, plan, tensors...);
  };
  launch(activate_grouped<T, token_groups>, 2 * e.width, cuda_data<T>(activated));
  launch(project_grouped<T, token_groups>, e.hidden, cuda_data<T>(activated), cuda_data<T>(results));
  combine_results(ctx, args, results);
}

}  // namespace

void moe_experts_cuda_grouped(const OpContext& ctx, const MoeExpertsArgs& args) {
  with_cuda_type(args.x.dtype(), [&](auto tag) {
    using T = decltype(tag);
    if constexpr (sizeof(T) == 2) {
      if (args.expert_ids.numel() > 96 * args.gate_up.dim(0))
        run_grouped<T, 2>(ctx, args);
      else
        run_grouped<T, 1>(ctx, args);
    }
  });
}

bool moe_experts_takes_grouped(const MoeExpertsArgs& args) {
  return dtype_size(args.x.dtype()) == 2 && is_packed(args.x) && is_packed(args.gate_up) &&
         is_packed(args.down) && is_packed(args.out) && args.gate_up.dim(0) <= kMaxPlannedExperts;
}

}  // namespace ladder

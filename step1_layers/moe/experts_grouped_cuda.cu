// The experts of many tokens: products of one expert after the other, in one launch.
#include "step1_layers/core/packed.h"
#include "step1_layers/core/wgmma.cuh"
#include "step1_layers/moe/experts_cuda.cuh"
#include "step1_layers/moe/tile_plan_cuda.h"

namespace ladder {

namespace {

// grouped (sm_90a)
// bf16 or f16, rows in whole 16-byte packs. A block multiplies a tile of an expert's tokens, gathered from wherever they
// stand, with 256 rows of that expert's weights, on Hopper's tensor cores: tokens from registers, weights from shared
// memory, where asynchronous copies bring both, some stages ahead. In the first product the rows of gate and up alternate
// by eights, so that a thread ends up with both values of a column: SiLU needs no exchange, and the [pairs, 2 * width]
// values in between are never written. Of many tokens per expert each of the block's two warpgroups takes 64 of a tile's
// 128 and all 256 rows; of few, both take the same 64 tokens and 128 rows each, so that fewer rows of a tile stay empty.
// What limits large tiles is what L2 gives: 128 x 256 values take 48 KiB for two million products; 128 x 128 took 32 for
// one, and no more than 349 TFLOP/s came of it (8192 tokens, 8 of 128 experts each, 2048 x 768, H200).
constexpr int kThreads = 2 * kWarpgroup;
constexpr int kDepth = 64;  // elements of the sum in a stage: rows of 128 bytes
constexpr int kChunks = kDepth / 8;
constexpr int kRowsAtOnce =
    kThreads / kChunks;  // of a tile, that the block's threads copy with one instruction

template <int token_groups>  // warpgroups with tokens of their own: 1 or 2
struct Shape {
  static constexpr int kTokens = 64 * token_groups;
  static constexpr int kRows = 256;                                // of the weights
  static constexpr int kParts = kRows / 128 / (2 / token_groups);  // of 128 rows, that a warpgroup takes
  static constexpr int kTokenBytes = kTokens * kDepth * 2, kRowBytes = kRows * kDepth * 2;
  static constexpr int kStageBytes = kTokenBytes + kRowBytes;
  static constexpr int kStages = token_groups == 2 ? 4 : 5;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;  // tiles stand at multiples of 1024
};

// d = tokens * rows^T for this thread's warpgroup. token(i) and row(i) are the addresses of rows i of the tiles, nullptr
// where there is none, which then counts as zeros.
template <int token_groups, class T, class Token, class Row>
__device__ void multiply(float (&d)[Shape<token_groups>::kParts][64], Token&& token, Row&& row, int length) {
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

  // Of two parts that follow each other one is multiplied while the other's tokens come from shared memory: their
  // registers alternate. The place of the part before these two is refilled.
  auto multiply_part = [&](int part, uint32_t(&a)[kDepth / 16][4], uint32_t(&a_before)[kDepth / 16][4]) {
    wait_copies<S::kStages - 3>();
    fence_for_wgmma();
    __syncthreads();  // the part is there for all, and all are done with the one whose place is refilled
    fetch(part + S::kStages - 2);
    const uint32_t at = stages + part % S::kStages * S::kStageBytes;
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step)
      load_matrices(a[step], at + swizzled(my_tokens + warp * 16 + lane % 16, step * 2 + lane / 16));
    const uint64_t b = wgmma_tile(at + S::kTokenBytes + my_rows * 128);
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step) keep_in_place(a[step]);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step)
#pragma unroll
      for (int i = 0; i < S::kParts; ++i)
        wgmma_64x128x16<false, T>(d[i], a[step], b + i * (128 * 128 / 16) + step * 2, part > 0 || step > 0);
    wgmma_commit();
    wgmma_wait<1>();
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step) keep_in_place(a_before[step]);
  };

  uint32_t even[kDepth / 16][4] = {}, odd[kDepth / 16][4] = {};
  for (int part = 0; part < S::kStages - 2; ++part) fetch(part);
  for (int part = 0; part < parts; part += 2) {
    multiply_part(part, even, odd);
    if (part + 1 < parts) multiply_part(part + 1, odd, even);
  }
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < S::kParts; ++i) keep_in_place(d[i]);
}

// Calls use(row of the tile, octet of the block's 256 columns, column in it, and where in d) for the pairs of neighbouring
// values that this thread has.
template <int token_groups, class Use>
__device__ void for_each_value(Use&& use) {
  using S = Shape<token_groups>;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  const int row = (token_groups == 2 ? thread / kWarp : thread % kWarpgroup / kWarp) * 16 + lane / 4;
  const int first_octet = token_groups == 2 ? 0 : thread / kWarpgroup * 16;
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int octet = 0; octet < 16 * S::kParts; ++octet)
      use(row + half * 8, first_octet + octet, lane % 4 * 2, octet / 16, octet % 16 * 4 + 2 * half);
}

// activated [places of the plan, width]
template <class T, int token_groups>
__global__ void __launch_bounds__(kThreads, 1) activate_grouped(Experts<T> e, TilePlan plan, T* activated) {
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
  float d[S::kParts][64] = {};
  multiply<token_groups, T>(d, token, weight, e.hidden);
  for_each_value<token_groups>([&](int row, int octet, int offset, int part, int i) {
    if (octet % 2 != 0 || row >= tile.rows) return;
    const float(&v)[64] = d[part];
    const int column = first_column + octet / 2 * 8 + offset;
    if (column < e.width)
      *reinterpret_cast<uint32_t*>(activated + int64_t{tile.first + row} * e.width + column) =
          pack_pair<T>(silu_and_mul<T>(v[i], v[i + 4]), silu_and_mul<T>(v[i + 1], v[i + 5]));
  });
}

// results [pairs, hidden], with their weights
template <class T, int token_groups>
__global__ void __launch_bounds__(kThreads, 1)
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
  float d[S::kParts][64] = {};
  multiply<token_groups, T>(d, token, weight, e.width);
  for_each_value<token_groups>([&](int row, int octet, int offset, int part, int i) {
    const int column = first_column + octet * 8 + offset;
    if (row >= tile.rows || column >= e.hidden) return;
    const int pair = plan.pairs[tile.first + row];
    *reinterpret_cast<uint32_t*>(results + int64_t{pair} * e.hidden + column) =
        pack_pair<T>(e.weights[pair] * d[part][i], e.weights[pair] * d[part][i + 1]);
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

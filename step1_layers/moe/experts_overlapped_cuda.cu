// The experts of many tokens, with copies, products and stores of different tiles at the same time.
#include <algorithm>

#include "step1_layers/core/gather_octet.cuh"
#include "step1_layers/core/packed.h"
#include "step1_layers/core/tensor_map_cuda.h"
#include "step1_layers/core/wgmma.cuh"
#include "step1_layers/moe/experts_cuda.cuh"
#include "step1_layers/moe/tile_plan_cuda.h"

namespace ladder {

namespace {

// overlapped (sm_90a)
// What `grouped` takes. There every warp copies, waits, multiplies and stores in turn, and a block's start and end leave the
// memory idle. Here a warpgroup only copies and two only multiply (as in paged_attention_prefill_wgmma_cuda.cu), handing
// stages over by barriers in shared memory; one block runs on a multiprocessor and works at item after item, so that the
// copies for the next item run under the products and stores of this one. The weights, a regular box of a tensor, are
// brought by the copy engine (tensor_map_cuda.h) at the word of one thread; tokens stand anywhere and are copied by threads.
// Tiles are twice as many rows of weights as in `grouped`: what is read of the L2 cache per product, its limit with many
// tokens, is a quarter less. Of many tokens per expert, the warpgroups have 64 each and the same 256 rows of weights; of few,
// the same 64 tokens and 128 rows each.
constexpr int kConsumers = 2;  // warpgroups that multiply; one more copies
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kDepth = 64;  // elements of the sum in a stage: rows of 128 bytes
constexpr int kChunks = kDepth / 8;
constexpr int kRows = 256;  // of the weights, in a tile
constexpr int kRowBytes = kRows * kDepth * 2;
constexpr int kTokensAtOnce = kWarpgroup / kChunks;  // that the warpgroup copies with one instruction

// With more pairs than this per expert, on average, tiles are of 128 tokens: 337 us instead of 401 with 64 (1,024 tokens, 8 of
// 128 experts each), and 353 instead of 330 with 16 (H200).
constexpr int kManyPerExpert = 40;

template <int token_groups>  // warpgroups with tokens of their own: 1 or 2
struct Shape {
  static constexpr int kTokens = 64 * token_groups;
  static constexpr int kHalves = token_groups;  // of 128 rows of weights, that a warpgroup has
  static constexpr int kTokenBytes = kTokens * kDepth * 2;
  static constexpr int kStageBytes = kTokenBytes + kRowBytes;
  static constexpr int kStages = token_groups == 2 ? 4 : 5;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;  // tiles stand at multiples of 1024
};

// Where a warpgroup is in the ring of stages. A stage's barrier `full` ends a phase when its copies have arrived, `empty` when
// it has been multiplied; wait_phase with `parity` waits for this round's phase, with its opposite for the round before.
template <int token_groups>
struct Ring {
  using S = Shape<token_groups>;
  uint32_t stages, full, empty;  // addresses in shared memory; of barriers the first
  int stage = 0;
  uint32_t parity = 0;

  __device__ uint32_t at() const { return stages + stage * S::kStageBytes; }
  __device__ uint32_t filled() const { return full + stage * 8; }
  __device__ uint32_t emptied() const { return empty + stage * 8; }
  __device__ void advance() {
    if (++stage == S::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The items of this block: a tile of tokens with a column block each. Calls use(tile, column block) until there are no
// more; the next tile is asked for before the one in hand is worked at.
template <class Use>
__device__ void for_each_item(const TilePlan& plan, int column_blocks, Use&& use) {
  int item = static_cast<int>(blockIdx.x);
  auto tile_at = [&](int i) {
    return i < plan.max_tiles * column_blocks ? plan.tiles[i / column_blocks] : Tile{-1, 0, 0, 0};
  };
  Tile tile = tile_at(item);
  while (tile.rows > 0) {
    const int next = item + static_cast<int>(gridDim.x);
    const Tile next_tile = tile_at(next);
    use(tile, item % column_blocks);
    item = next;
    tile = next_tile;
  }
}

// The warpgroup that copies. token(tile, row) is where a row of a tile's tokens stands, nullptr where there is none, which
// then counts as zeros; box(tile, column block, column, to, barrier) asks for a part of the weights. `weights_early`: the
// weights of the first stages are asked for before the previous kernel has ended; only tokens come from it.
template <int token_groups, bool weights_early, class T, class Token, class Box>
__device__ void copy_items(Ring<token_groups> ring, const TilePlan& plan, int column_blocks, int length,
                           Token&& token, Box&& box) {
  using S = Shape<token_groups>;
  const int thread = static_cast<int>(threadIdx.x), chunk = thread % kChunks, first_row = thread / kChunks;
  auto ask_for_weights = [&](const Ring<token_groups>& at, const Tile& tile, int columns, int column) {
    arrive_and_expect(at.filled(), kRowBytes);
    box(tile, columns, column, at.at() + S::kTokenBytes, at.filled());
  };
  int asked = 0;  // parts of weights that were asked for early
  if (weights_early) {
    const int item = static_cast<int>(blockIdx.x);
    const Tile tile = plan.tiles[item / column_blocks];
    if (thread == 0 && tile.rows > 0)
      for (Ring<token_groups> ahead = ring; asked < S::kStages && asked * kDepth < length; ++asked) {
        ask_for_weights(ahead, tile, item % column_blocks, asked * kDepth);
        ahead.advance();
      }
    wait_for_previous_kernel();
  }
  constexpr int kSteps = S::kTokens / kTokensAtOnce;
  for_each_item(plan, column_blocks, [&](const Tile& tile, int columns) {
    const T* tokens[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) tokens[i] = token(tile, first_row + i * kTokensAtOnce);
    for (int column = 0; column < length; column += kDepth) {
      wait_phase(ring.emptied(), ring.parity ^ 1);
      if (thread == 0 && --asked < 0) ask_for_weights(ring, tile, columns, column);
      const int my_column = column + chunk * 8;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const bool valid = tokens[i] != nullptr && my_column < length;
        copy_async(ring.at() + swizzled(first_row + i * kTokensAtOnce, chunk),
                   valid ? tokens[i] + my_column : nullptr, valid);
      }
      arrive_with_copies(ring.filled());
      ring.advance();
    }
  });
}

// The warpgroups that multiply. prepare(tile, first row) is asked before the work on an item, and what it says is handed
// on to use(tile, column block, first row, d, what it said): what this thread has of tokens * rows^T.
template <int token_groups, class T, class Prepare, class Use>
__device__ void multiply_items(Ring<token_groups> ring, const TilePlan& plan, int column_blocks, int length,
                               Prepare&& prepare, Use&& use) {
  using S = Shape<token_groups>;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  const int group = thread / kWarpgroup - 1, warp = thread % kWarpgroup / kWarp;
  const int my_tokens = token_groups == 2 ? group * 64 : 0, my_rows = token_groups == 2 ? 0 : group * 128;
  const int parts = ceil_div(length, kDepth);
  float d[S::kHalves][64];
  uint32_t a[2][kDepth / 16][4];
  auto release = [&](uint32_t emptied) {
    __syncwarp();
    if (lane == 0) arrive(emptied);
  };
  for_each_item(plan, column_blocks, [&](const Tile& tile, int columns) {
    if (my_tokens >= tile.rows) {
      for (int part = 0; part < parts; ++part) {
        wait_phase(ring.filled(), ring.parity);
        release(ring.emptied());
        ring.advance();
      }
      return;
    }
    const int first_row = my_tokens + warp * 16 + lane / 4;
    const auto prepared = prepare(tile, first_row);
    uint32_t before = 0;  // the barrier of the part that is being multiplied
    auto start = [&](uint32_t(&tokens)[kDepth / 16][4], int part) {
      wait_phase(ring.filled(), ring.parity);
#pragma unroll
      for (int step = 0; step < kDepth / 16; ++step)
        load_matrices(tokens[step],
                      ring.at() + swizzled(my_tokens + warp * 16 + lane % 16, step * 2 + lane / 16));
      const uint64_t rows = wgmma_tile(ring.at() + S::kTokenBytes + my_rows * 128);
      keep_in_place(tokens);
      keep_in_place(d);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kDepth / 16; ++step)
#pragma unroll
        for (int half = 0; half < S::kHalves; ++half)
          wgmma_64x128x16<false, T>(d[half], tokens[step], rows + half * (128 * 128 / 16) + step * 2,
                                    part > 0 || step > 0);
      wgmma_commit();
      if (part > 0) {
        wgmma_wait<1>();
        release(before);
      }
      before = ring.emptied();
      ring.advance();
    };
    // Waited for at each end of the loop: behind a common one the compiler would not see that d is complete.
    auto was_last = [&](int part) {
      if (part + 1 < parts) return false;
      wgmma_wait<0>();
      return true;
    };
    for (int part = 0;;) {
      start(a[0], part);
      keep_in_place(a[1]);
      if (was_last(part++)) break;
      start(a[1], part);
      keep_in_place(a[0]);
      if (was_last(part++)) break;
    }
    keep_in_place(d);
    keep_in_place(a[0]);
    keep_in_place(a[1]);
    release(before);
    use(tile, columns, first_row, d, prepared);
  });
}

// Writes what this warpgroup has of a tile in whole packs. pair(half, octet, lower) are two neighbouring values of octet
// `octet` of a half, in the row that begins at lane / 4 (`lower`: 8 rows below); store(row of those two, octet of all, pack).
template <int token_groups, int octets, class Pair, class Store>
__device__ void store_packs(Pair&& pair, Store&& store) {
  const int thread = static_cast<int>(threadIdx.x) - kWarpgroup;
  const int first = token_groups == 2 ? 0 : thread / kWarpgroup * octets;
#pragma unroll
  for (int half = 0; half < Shape<token_groups>::kHalves; ++half)
#pragma unroll
    for (int octet = 0; octet < octets; octet += 4)
#pragma unroll
      for (int lower = 0; lower < 2; ++lower)
        store(lower, first + half * octets + octet + thread % 4,
              gather_octet(pair(half, octet, lower), pair(half, octet + 1, lower),
                           pair(half, octet + 2, lower), pair(half, octet + 3, lower)));
}

template <int token_groups>
__device__ Ring<token_groups> make_ring(uint64_t* barriers) {
  using S = Shape<token_groups>;
  extern __shared__ unsigned char shared[];
  Ring<token_groups> ring;
  ring.stages = (shared_address(shared) + 1023) & ~1023u;
  ring.full = shared_address(barriers);
  ring.empty = ring.full + S::kStages * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      init_barrier(ring.full + i * 8, kWarpgroup + 1);                    // threads copy, and the box
      init_barrier(ring.empty + i * 8, kConsumers * kWarpgroup / kWarp);  // warps multiply
    }
    fence_for_wgmma();
  }
  return ring;
}

// activated [places of the plan, width]
template <class T, int token_groups>
__global__ void __launch_bounds__(kThreads, 1)
    activate_overlapped(Experts<T> e, const __grid_constant__ CUtensorMap weights, TilePlan plan,
                        int column_blocks, T* activated) {
  __shared__ uint64_t barriers[2 * Shape<token_groups>::kStages];
  const Ring<token_groups> ring = make_ring<token_groups>(barriers);
  wait_for_previous_kernel();
  allow_next_kernel();  // not before: the next one reads the plan without waiting
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_registers<40>();
    copy_items<token_groups, false, T>(
        ring, plan, column_blocks, e.hidden,
        [&](const Tile& tile, int row) -> const T* {
          return row < tile.rows ? e.x + plan.pairs[tile.first + row] / e.top_k * e.x_stride : nullptr;
        },
        [&](const Tile& tile, int columns, int column, uint32_t to, uint32_t barrier) {
          copy_box(to, weights, barrier, column, 0, 0, columns * (kRows / 16), tile.expert);
        });
  } else {
    take_registers<232>();
    multiply_items<token_groups, T>(
        ring, plan, column_blocks, e.hidden, [](const Tile&, int) { return 0; },
        [&](const Tile& tile, int columns, int first_row, auto& d, int) {
          store_packs<token_groups, 8>(
              [&](int half, int octet, int lower) {
                const float* gate = d[half] + 8 * octet + 2 * lower;
                return pack_pair<T>(silu_and_mul<T>(gate[0], gate[4]), silu_and_mul<T>(gate[1], gate[5]));
              },
              [&](int lower, int octet, uint4 pack) {
                const int row = first_row + lower * 8, column = columns * (kRows / 2) + octet * 8;
                if (row < tile.rows && column < e.width)
                  *reinterpret_cast<uint4*>(activated + int64_t{tile.first + row} * e.width + column) = pack;
              });
        });
  }
}

// Where a thread's two rows of results go.
struct Destination {
  int pair[2] = {-1, -1};
  float weight[2] = {0, 0};
};

// results [pairs, hidden], with their weights
template <class T, int token_groups>
__global__ void __launch_bounds__(kThreads, 1)
    project_overlapped(Experts<T> e, const __grid_constant__ CUtensorMap weights, TilePlan plan,
                       int column_blocks, const T* activated, T* results) {
  __shared__ uint64_t barriers[2 * Shape<token_groups>::kStages];
  const Ring<token_groups> ring = make_ring<token_groups>(barriers);
  allow_next_kernel();
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_registers<40>();
    copy_items<token_groups, true, T>(
        ring, plan, column_blocks, e.width,
        [&](const Tile& tile, int row) -> const T* {
          return row < tile.rows ? activated + int64_t{tile.first + row} * e.width : nullptr;
        },
        [&](const Tile& tile, int columns, int column, uint32_t to, uint32_t barrier) {
          copy_box(to, weights, barrier, column, 0, 0, columns * (kRows / 8), tile.expert);
        });
  } else {
    take_registers<232>();
    wait_for_previous_kernel();
    multiply_items<token_groups, T>(
        ring, plan, column_blocks, e.width,
        [&](const Tile& tile, int first_row) {
          Destination to;
          for (int lower = 0; lower < 2; ++lower)
            if (first_row + lower * 8 < tile.rows) {
              to.pair[lower] = plan.pairs[tile.first + first_row + lower * 8];
              to.weight[lower] = e.weights[to.pair[lower]];
            }
          return to;
        },
        [&](const Tile&, int columns, int, auto& d, const Destination& to) {
          store_packs<token_groups, 16>(
              [&](int half, int octet, int lower) {
                const float* sum = d[half] + 4 * octet + 2 * lower;
                return pack_pair<T>(to.weight[lower] * sum[0], to.weight[lower] * sum[1]);
              },
              [&](int lower, int octet, uint4 pack) {
                const int column = columns * kRows + octet * 8;
                if (to.pair[lower] >= 0 && column < e.hidden)
                  *reinterpret_cast<uint4*>(results + int64_t{to.pair[lower]} * e.hidden + column) = pack;
              });
        });
  }
}

template <class T, int token_groups>
void run_overlapped(const OpContext& ctx, const MoeExpertsArgs& args) {
  using S = Shape<token_groups>;
  const Experts<T> e = experts_of<T>(args);
  ArenaScope scope(*ctx.arena);
  const TilePlan plan = plan_tiles(ctx, args.expert_ids, e.experts, S::kTokens);
  const Tensor activated = ctx.arena->take({e.pairs(), e.width}, args.x.dtype());
  const Tensor results = ctx.arena->take({e.pairs(), e.hidden}, args.x.dtype());
  const DType dtype = args.x.dtype();
  // [experts, octets, gate or up, 8, hidden]
  const CUtensorMap gate_up = tensor_map({.data = e.gate_up,
                                          .dtype = dtype,
                                          .sizes = {e.hidden, 8, 2, e.width / 8, e.experts},
                                          .strides = {e.hidden, int64_t{e.width} * e.hidden,
                                                      int64_t{8} * e.hidden, int64_t{2} * e.width * e.hidden},
                                          .box = {kDepth, 8, 2, kRows / 16, 1}});
  // [experts, octets, 1, 8, width]
  const CUtensorMap down = tensor_map(
      {.data = e.down,
       .dtype = dtype,
       .sizes = {e.width, 8, 1, e.hidden / 8, e.experts},
       .strides = {e.width, int64_t{8} * e.width, int64_t{8} * e.width, int64_t{e.hidden} * e.width},
       .box = {kDepth, 8, 1, kRows / 8, 1}});
  auto launch = [&](auto kernel, const CUtensorMap& map, int rows, auto... tensors) {
    ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), S::kSharedBytes);
    const int column_blocks = ceil_div(rows, kRows);
    const int blocks = std::min(ctx.cuda->num_multiprocessors(), plan.max_tiles * column_blocks);
    launch_kernel(ctx, kernel, static_cast<unsigned>(blocks), kThreads, S::kSharedBytes, e, map, plan,
                  column_blocks, tensors...);
  };
  launch(activate_overlapped<T, token_groups>, gate_up, 2 * e.width, cuda_data<T>(activated));
  launch(project_overlapped<T, token_groups>, down, e.hidden, cuda_data<T>(activated), cuda_data<T>(results));
  combine_results(ctx, args.expert_ids, e.experts, results, args.out);
}

}  // namespace

void moe_experts_cuda_overlapped(const OpContext& ctx, const MoeExpertsArgs& args) {
  with_cuda_type(args.x.dtype(), [&](auto tag) {
    using T = decltype(tag);
    if constexpr (sizeof(T) == 2) {
      if (args.expert_ids.numel() > kManyPerExpert * args.gate_up.dim(0))
        run_overlapped<T, 2>(ctx, args);
      else
        run_overlapped<T, 1>(ctx, args);
    }
  });
}

}  // namespace ladder

// The experts of few tokens: their weights are what must be moved.
#include "step1_layers/core/packed.h"
#include "step1_layers/core/tensor_core.cuh"
#include "step1_layers/moe/experts_cuda.cuh"
#include "step1_layers/moe/tile_plan_cuda.h"

namespace ladder {

namespace {

// stream (sm_80)
// bf16 or f16, hidden size and width in whole 64s. Tiles of 8 or 16 tokens of an expert (tile_plan_cuda.h); a single
// token needs no plan, its pairs are the tiles. On the tensor cores the weights are the rows of an mma and the tokens its
// eight columns, so that few tokens leave little of it idle. As the order of a sum is free, sixteen bytes of a row of the
// weights are a lane's operands of two mma as they come (rows_stream.cuh has it the other way round): a lane copies what
// it will multiply itself, lines ahead, and waits for nobody. A block has 16 columns of gate and up, or 32 of down; its four
// warps take every fourth line of 128 bytes along the sum and add up at the end. A gate column and the up column that
// belongs to it are rows g and g + 8 of one mma, which are in the same lane's registers: SiLU needs no exchange.
constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kGroups = 2;  // mma of 16 rows of weights each
constexpr int kLine = 64;   // elements
constexpr int kSlots = 3;   // lines of a warp that are on their way
// With more pairs than this per expert, on average, the tiles of this rung read the weights too often: `overlapped` takes 294
// us where it takes 298 (64 tokens, 8 of 128 experts each), and 264 where it takes 260 with half of them (H200).
constexpr int kPairsPerExpert = 3;

template <int octets>
constexpr int kPacks = 2 *
                       (2 * kGroups + octets);  // that a thread needs of a line: of weights, then of tokens
template <int octets>
constexpr int kRingBytes = kSlots* kPacks<octets>* kThreads * 16;

template <int octets>
struct StreamSums {
  float sum[kGroups][octets][4] = {};

  // rows[i][0], rows[i][1]: what this lane reads of group i's mma, at its pack of line 0; tokens[o] likewise of its token
  // of octet o, nullptr where there is none.
  template <class T>
  __device__ void multiply(const T* const (&rows)[kGroups][2], const T* const (&tokens)[octets], int length) {
    extern __shared__ __align__(16) unsigned char shared[];
    const uint32_t ring = shared_address(shared) + threadIdx.x * 16;
    auto place = [&](int slot, int pack) { return ring + (slot * kPacks<octets> + pack) * kThreads * 16; };
    const int lines = length / kLine, warp = static_cast<int>(threadIdx.x) / kWarp;
    auto fetch = [&](int line, int slot) {
      if (line < lines) {
        int pack = 0;
#pragma unroll
        for (int group = 0; group < kGroups; ++group)
#pragma unroll
          for (int row = 0; row < 2; ++row)
#pragma unroll
            for (int half = 0; half < 2; ++half)
              copy_of_line_async(place(slot, pack++), rows[group][row] + line * kLine + half * (kLine / 2),
                                 true);
#pragma unroll
        for (int o = 0; o < octets; ++o)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            copy_async(place(slot, pack++),
                       tokens[o] != nullptr ? tokens[o] + line * kLine + half * (kLine / 2) : nullptr,
                       tokens[o] != nullptr);
      }
      commit_copies();
    };

#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) fetch(warp + slot * kWarps, slot);
    for (int line = warp, slot = 0; line < lines; line += kWarps) {
      wait_copies<kSlots - 1>();
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          const uint4 low = load_shared(place(slot, group * 4 + half)),
                      high = load_shared(place(slot, group * 4 + 2 + half));
#pragma unroll
          for (int o = 0; o < octets; ++o) {
            const uint4 token = load_shared(place(slot, kGroups * 4 + o * 2 + half));
            mma_16x8x16<T>(sum[group][o], {low.x, high.x, low.y, high.y}, {token.x, token.y});
            mma_16x8x16<T>(sum[group][o], {low.z, high.z, low.w, high.w}, {token.z, token.w});
          }
        }
      fetch(line + kSlots * kWarps, slot);
      slot = slot + 1 < kSlots ? slot + 1 : 0;
    }
  }

  // The sums of all warps, of mma after mma dealt out to the warps: use(group, octet, sums of this lane).
  template <class Use>
  __device__ void add_up(Use&& use) const {
    constexpr int kProducts = kGroups * octets;
    __shared__ float4 parts[kWarps][kProducts][kWarp];
    const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      const float(&s)[4] = sum[i / octets][i % octets];
      parts[warp][i][lane] = {s[0], s[1], s[2], s[3]};
    }
    __syncthreads();
    for (int i = warp; i < kProducts; i += kWarps) {
      float4 total = parts[0][i][lane];
#pragma unroll
      for (int other = 1; other < kWarps; ++other) {
        const float4 part = parts[other][i][lane];
        total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
      }
      use(i / octets, i % octets, total);
    }
  }
};

// The tile of this block; without a plan tile p is pair p.
template <class T>
__device__ Tile tile_of(const Experts<T>& e, const TilePlan& plan) {
  const int index = static_cast<int>(blockIdx.x);
  if (plan.tiles != nullptr) return plan.tiles[index];
  const int expert = e.expert_of(index);
  return {expert, index, expert < 0 ? 0 : 1, 0};
}
__device__ int pair_at(const TilePlan& plan, int place) {
  return plan.pairs != nullptr ? plan.pairs[place] : place;
}

// activated [places of the plan, width]
template <class T, int octets>
__global__ void __launch_bounds__(kThreads) activate_stream(Experts<T> e, TilePlan plan, T* activated) {
  allow_next_kernel();
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const int first_column = static_cast<int>(blockIdx.y) * kGroups * 8;
  wait_for_previous_kernel();
  const Tile tile = tile_of(e, plan);
  if (tile.rows == 0) return;
  const T *rows[kGroups][2], *tokens[octets];
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    rows[group][0] = e.gate_row(tile.expert, first_column + group * 8 + g) + t * 8;
    rows[group][1] = e.up_row(tile.expert, first_column + group * 8 + g) + t * 8;
  }
#pragma unroll
  for (int o = 0; o < octets; ++o) {
    const int row = o * 8 + g;
    tokens[o] =
        row < tile.rows ? e.x + pair_at(plan, tile.first + row) / e.top_k * e.x_stride + t * 8 : nullptr;
  }
  StreamSums<octets> sums;
  sums.multiply(rows, tokens, e.hidden);
  sums.add_up([&](int group, int o, float4 sum) {
    const int row = o * 8 + 2 * t;
    T* to = activated + int64_t{tile.first + row} * e.width + first_column + group * 8 + g;
    if (row < tile.rows) to[0] = from_float<T>(silu_and_mul<T>(sum.x, sum.z));
    if (row + 1 < tile.rows) to[e.width] = from_float<T>(silu_and_mul<T>(sum.y, sum.w));
  });
}

// results [pairs, hidden], with their weights
template <class T, int octets>
__global__ void __launch_bounds__(kThreads)
    project_stream(Experts<T> e, TilePlan plan, const T* activated, float* results) {
  allow_next_kernel();
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const int first_column = static_cast<int>(blockIdx.y) * kGroups * 16;
  wait_for_previous_kernel();
  const Tile tile = tile_of(e, plan);
  if (tile.rows == 0) return;
  const T *rows[kGroups][2], *tokens[octets];
#pragma unroll
  for (int group = 0; group < kGroups; ++group)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      rows[group][half] = e.down_row(tile.expert, first_column + group * 16 + half * 8 + g) + t * 8;
#pragma unroll
  for (int o = 0; o < octets; ++o)
    tokens[o] =
        o * 8 + g < tile.rows ? activated + int64_t{tile.first + o * 8 + g} * e.width + t * 8 : nullptr;
  StreamSums<octets> sums;
  sums.multiply(rows, tokens, e.width);
  sums.add_up([&](int group, int o, float4 sum) {
    const float of_row[2][2] = {{sum.x, sum.z}, {sum.y, sum.w}};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = o * 8 + 2 * t + i;
      if (row >= tile.rows) break;
      const int pair = pair_at(plan, tile.first + row);
      float* to = results + int64_t{pair} * e.hidden + first_column + group * 16 + g;
      to[0] = e.weights[pair] * of_row[i][0];
      to[8] = e.weights[pair] * of_row[i][1];
    }
  });
}

template <class T, int octets>
void run_stream(const OpContext& ctx, const MoeExpertsArgs& args) {
  const Experts<T> e = experts_of<T>(args);
  ArenaScope scope(*ctx.arena);
  TilePlan plan;
  plan.max_tiles = e.pairs();
  if (e.tokens > 1) plan = plan_tiles(ctx, args.expert_ids, e.experts, octets * 8);
  const Tensor activated = ctx.arena->take({e.pairs(), e.width}, args.x.dtype());
  const Tensor results = ctx.arena->take({e.pairs(), e.hidden}, DType::f32);
  const auto tiles = static_cast<unsigned>(plan.max_tiles);
  const auto gate_blocks = static_cast<unsigned>(e.width / (kGroups * 8));
  const auto down_blocks = static_cast<unsigned>(e.hidden / (kGroups * 16));
  auto launch = [&](auto kernel, unsigned columns, auto... tensors) {
    ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), kRingBytes<octets>);
    launch_kernel(ctx, kernel, dim3(tiles, columns), kThreads, kRingBytes<octets>, e, plan, tensors...);
  };
  launch(activate_stream<T, octets>, gate_blocks, cuda_data<T>(activated));
  launch(project_stream<T, octets>, down_blocks, cuda_data<T>(activated), cuda_data<float>(results));
  combine_results(ctx, args.expert_ids, e.experts, results, args.out);
}

}  // namespace

void moe_experts_cuda_stream(const OpContext& ctx, const MoeExpertsArgs& args) {
  with_cuda_type(args.x.dtype(), [&](auto tag) {
    using T = decltype(tag);
    if constexpr (sizeof(T) == 2) {
      const int64_t pairs = args.expert_ids.numel(), experts = args.gate_up.dim(0);
      if (args.x.dim(0) == 1 || pairs <= experts)
        run_stream<T, 1>(ctx, args);
      else
        run_stream<T, 2>(ctx, args);
    }
  });
}

bool moe_experts_takes_stream(const MoeExpertsArgs& args) {
  return dtype_size(args.x.dtype()) == 2 && args.x.dim(1) % kLine == 0 && args.down.dim(2) % kLine == 0 &&
         is_packed(args.x) && is_packed(args.out) && args.gate_up.dim(0) <= kMaxPlannedExperts &&
         args.expert_ids.numel() <= kPairsPerExpert * args.gate_up.dim(0);
}

}  // namespace ladder

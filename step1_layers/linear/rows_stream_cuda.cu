// The matrix product for few rows as a stream of weights that never stops (sm_90).
#include <algorithm>

#include "step1_layers/core/packed.h"
#include "step1_layers/core/tensor_core.cuh"
#include "step1_layers/linear/matmul_cuda.cuh"
#include "step1_layers/linear/rows_stream.cuh"

namespace ladder {

namespace {

constexpr int kUnit = 8;    // rows of the weight: the columns of one mma
constexpr int kChunk = 32;  // of k: what a warp multiplies at a time
constexpr int kMaxRows = 32;
// Of x in the registers of a thread, where 16 rows or fewer are no longer than that.
constexpr int kHeldChunks = 4, kMaxHeld = kHeldChunks * kWarps * kChunk;
// Of a normed x, that its rows fit beside the ring; of more rows a kernel norms once what every block would.
constexpr int kMaxNormedRows = 16, kMaxNormed = 32768;
// At most two blocks of a multiprocessor, one of this kernel and one of the kernel behind: else early blocks
// crowd on a few multiprocessors while others idle.
constexpr int kLeastBytes = 77 << 10;

// The ring of a block: kDepth slots, each one segment of k of all rows of a group.
template <int kTiles, int kChunks, int kDepth>
struct StreamSlots {
  static constexpr int kSegment = kWarps * kChunk * kChunks;
  static constexpr int kPacks = kThreads * 16;  // bytes of one pack for every thread
  static constexpr int kBytes = kTiles * kChunks * kPacks;
};

// rows_stream (sm_90)
// bf16 or f16, up to 32 rows of x, everything in whole 16-byte packs; of a normed x up to 16 rows and 32768
// elements. One block per multiprocessor computes its even share of the weight's rows, in groups of kTiles
// units of eight: a unit is the B operand of mma, the rows of x are the A operand, sixteen for the price of
// one. The eight warps share k (each 32 columns times kChunks of every segment) and add up in shared memory
// at the end of a group.
//
// The rung below has as many loads in flight as registers hold, and between two turns of loads memory rests.
// Here every thread copies what it will multiply itself, weights and x, asynchronously, into a queue of its
// own in shared memory: up to 96 KB per multiprocessor under way at any time, and no barrier between who
// copies and who multiplies. (As in rows_tensor_core the order of k is free, and a lane's 16 bytes are its
// mma operands as they come.) The weights do not depend on the kernel in front, so their queue is filled
// before that has ended: the products of a layer become one stream, and a product whose weights fit the ring
// (those of Qwen3-0.6B) finds all of them there. What is left to wait for is latency. Memory answers a
// multiprocessor roughly in the order of its questions: when the kernel behind has asked for all its ring
// holds, this one's x, in L2 since long, comes after that. So the ring of a product that fits is filled few
// slots at a time (kUnderway). Up to 16 rows of x that are no longer than 1024 go straight to registers, all
// at once (kHeld), which leaves the ring room for all weights; others go through the queue.
//
// In front: a block norms the few rows for itself, from L2, which is quicker than a kernel that does it once.
// Behind: the columns of a block are its own, so that it adds them to the residual stream or, with the gate
// and up units of the same columns in one group, applies the activation.
template <class T, int kRows, int kTiles, int kChunks, int kDepth, int kUnderway, bool kHeld>
__global__ void __launch_bounds__(kThreads, 2) rows_stream_kernel(StreamProduct<T> p) {
  using Slots = StreamSlots<kTiles, kChunks, kDepth>;
  constexpr int kSegment = Slots::kSegment;
  constexpr int kHalves = kRows / 8;            // groups of eight rows of x
  constexpr int kBlocks = (kRows + 15) / 16;    // groups of sixteen: the rows of one mma
  constexpr int kChains = kTiles <= 2 ? 2 : 1;  // of dependent mma per output
  constexpr int kColumns = kTiles * kUnit + 8;  // of a row of sums: spreads the rows over the banks
  constexpr int kSize = Pack<T>::kSize;
  extern __shared__ __align__(128) unsigned char shared[];

  allow_next_kernel();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int segments = kHeld ? kHeldChunks / kChunks : ceil_div(p.k, kSegment);
  // Units of eight rows of the weight (silu_and_mul: pairs of units) are dealt out evenly.
  const bool paired = p.behind == Behind::silu_and_mul;
  const int width = paired ? p.n / 2 : p.n;
  const int block = static_cast<int>(blockIdx.x);
  const int begin = block * p.units + min(block, p.one_more), end = begin + p.units + (block < p.one_more);
  constexpr int kPairs = kTiles > 1 ? kTiles / 2 : 1;
  const int units_per_group = paired ? kPairs : kTiles;
  const int groups = paired ? ceil_div(end - begin, kPairs) : ceil_div(end - begin, kTiles);
  const int first_a = warp * kChunk * kChunks + t * kSize;  // this lane's column of every segment

  // A thread's own queue: what it copies is what it multiplies. Rows past the end become zeros.
  const uint32_t ring = shared_address(shared) + p.shape.ring + threadIdx.x * 16;
  const int64_t unit_stride = kUnit * p.weight_stride;
  const int64_t odd_tile = paired ? width * p.weight_stride : unit_stride;
  const int64_t two_tiles = paired ? unit_stride : 2 * unit_stride;
  int fetch_row = begin * kUnit + g, fetch_a = first_a, fetch_slot = 0, to_fetch = groups * segments;
  const int last_row = min(end * kUnit, width);
  const T* fetch_from = p.weight + fetch_row * p.weight_stride + first_a;
  auto fetch = [&] {
    if (to_fetch > 0) {
      const uint32_t to = ring + fetch_slot * Slots::kBytes;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const bool inside = fetch_row + (paired ? tile / 2 : tile) * kUnit < last_row;
        const T* from = fetch_from + tile / 2 * two_tiles + tile % 2 * odd_tile;
#pragma unroll
        for (int c = 0; c < kChunks; ++c)
          copy_of_line_async(to + (tile * kChunks + c) * Slots::kPacks, from + c * kChunk,
                             inside && fetch_a + c * kChunk < p.k);
      }
      --to_fetch;
      fetch_a += kSegment;
      fetch_from += kSegment;
      if (fetch_a - first_a >= segments * kSegment) {
        fetch_from += units_per_group * unit_stride - (fetch_a - first_a);
        fetch_row += units_per_group * kUnit;
        fetch_a = first_a;
      }
      fetch_slot = fetch_slot + 1 < kDepth ? fetch_slot + 1 : 0;
    }
    commit_copies();
  };
  // Few slots at a time where the ring holds them all, and as fast as they come where it does not.
  const bool all_fit = to_fetch <= kDepth;
#pragma unroll 1
  for (int s = 0; s < kDepth; ++s) {
    if (all_fit) wait_copies<kUnderway - 1>();
    fetch();
  }

  const bool normed = p.gain != nullptr;
  if (normed)
#pragma unroll 1
    for (int pack = threadIdx.x; pack < p.k / kSize; pack += kThreads)
      store_pack(reinterpret_cast<T*>(shared) + pack * kSize, load_pack(p.gain + pack * kSize));

  // The packs of x stand in the order in which the warps take them. A normed x is there as a whole; another
  // one is copied segment by segment beside the weights, by the thread that multiplies it.
  const int x_slot = p.m * kSegment * static_cast<int>(sizeof(T));
  auto x_at = [&](int in_slot, int c, int w, int row, int pack) {
    return p.shape.x + in_slot * x_slot + (((c * kWarps + w) * p.m + row) * 4 + pack) * 16;
  };
  auto fetch_x = [&](int segment, int in_slot) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const int row = h * 8 + g, a = segment * kSegment + first_a + c * kChunk;
        if (row < p.m)
          copy_of_line_async(shared_address(shared + x_at(in_slot, c, warp, row, t)),
                             p.x + row * p.x_stride + a, a < p.k);
      }
  };
  constexpr uint4 kZero{0, 0, 0, 0};
  auto load_x = [&](int in_slot, int c, int h) {
    const int row = h * 8 + g;
    return row < p.m ? *reinterpret_cast<const uint4*>(shared + x_at(in_slot, c, warp, row, t)) : kZero;
  };

  // Of held rows, those past the last one are copies of it, which no one stores.
  uint4 held[kHeldChunks][kHalves];
  const T* held_from[kHalves];
#pragma unroll
  for (int h = 0; h < kHalves; ++h) held_from[h] = p.x + min(h * 8 + g, p.m - 1) * p.x_stride + first_a;

  wait_for_previous_kernel();
  if (groups == 0) return;
  if constexpr (kHeld) {
    auto offset = [](int c) { return c / kChunks * kSegment + c % kChunks * kChunk; };
#pragma unroll
    for (int c = 0; c < kHeldChunks; ++c)
#pragma unroll
      for (int h = 0; h < kHalves; ++h)
        held[c][h] =
            first_a + offset(c) < p.k ? *reinterpret_cast<const uint4*>(held_from[h] + offset(c)) : kZero;
    if (normed)
      norm_held(p, reinterpret_cast<const T*>(shared), held, [&](int c) { return first_a + offset(c); });
  } else if (normed) {
    // Pack i of a row holds columns of chunk i / 4, which is the c-th of warp w in its segment.
    norm_rows(p, reinterpret_cast<const T*>(shared), segments * kSegment / kSize, [&](int i, int row) {
      const int chunk = i / 4, w = chunk / kChunks % kWarps;
      const int at = x_at(chunk / kChunks / kWarps, chunk % kChunks, w, row, i % 4);
      return reinterpret_cast<T*>(shared + at);
    });
  } else {
#pragma unroll 1
    for (int s = 0, segment = 0; s < kDepth; ++s) {
      if (s < groups * segments) fetch_x(segment, s);
      commit_copies();
      if (++segment == segments) segment = 0;
    }
  }

  float* const sums_of_warps = reinterpret_cast<float*>(shared + p.shape.sums);
  // Output o of a group: column o % of_group of row o / of_group.
  constexpr int kOutputs = kTiles * kUnit, kPairedOutputs = kTiles > 1 ? kOutputs / 2 : 1;
  const int of_group = paired ? kPairedOutputs : kOutputs;
  auto row_of = [&](int o) { return paired ? o / kPairedOutputs : o / kOutputs; };
  int slot = 0, x_ahead = kDepth % segments;  // the segment of x that is copied next
  for (int unit = begin; unit < end; unit += units_per_group) {
    const int group_units = min(units_per_group, end - unit);
    // The residual of the thread's first output, on its way while the product is computed.
    const int first_i = row_of(threadIdx.x), first_j = unit * kUnit + threadIdx.x - first_i * of_group;
    T residual = from_float<T>(0.0f);
    if (p.behind == Behind::add && first_i < p.m && first_j < width)
      residual = static_cast<const T*>(p.out)[first_i * p.out_stride + first_j];
    float sums[kChains][kBlocks][kTiles][4] = {};
#pragma unroll(kHeld ? kHeldChunks : 1)
    for (int segment = 0; segment < segments; ++segment) {
      wait_copies<kDepth - 1>();
      const unsigned char* from = shared + p.shape.ring + slot * Slots::kBytes + threadIdx.x * 16;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        uint4 x[2 * kBlocks];
#pragma unroll
        for (int h = 0; h < 2 * kBlocks; ++h)
          x[h] = h >= kHalves ? kZero
                 : kHeld      ? held[segment * kChunks + c][h]
                              : load_x(normed ? segment : slot, c, h);
        uint4 w[kTiles];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
          w[tile] = *reinterpret_cast<const uint4*>(from + (tile * kChunks + c) * Slots::kPacks);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          const uint4 low = x[2 * b], high = x[2 * b + 1];
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile)
            mma_16x8x16<T>(sums[0][b][tile], {low.x, high.x, low.y, high.y}, {w[tile].x, w[tile].y});
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile)
            mma_16x8x16<T>(sums[kChains - 1][b][tile], {low.z, high.z, low.w, high.w},
                           {w[tile].z, w[tile].w});
        }
      }
      if (!kHeld && !normed && to_fetch > 0) fetch_x(x_ahead, slot);
      fetch();
      x_ahead = x_ahead + 1 < segments ? x_ahead + 1 : 0;
      slot = slot + 1 < kDepth ? slot + 1 : 0;
    }

    // Row g (and g + 8, ...) of x at columns 2t and 2t + 1 of every unit; the warps' sums are added in order.
    if (p.sums_in_ring) __syncthreads();
    auto sum_at = [&](int w, int i, int column) -> float& {
      return sums_of_warps[(w * p.m + i) * kColumns + column];
    };
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int i = half * 8 + g;
      if (i >= p.m) continue;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int low_at = half % 2 * 2;
        float low = sums[0][half / 2][tile][low_at], high = sums[0][half / 2][tile][low_at + 1];
        if constexpr (kChains == 2) {
          low += sums[1][half / 2][tile][low_at];
          high += sums[1][half / 2][tile][low_at + 1];
        }
        *reinterpret_cast<float2*>(&sum_at(warp, i, tile * kUnit + 2 * t)) = float2{low, high};
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int o = threadIdx.x; o < p.m * of_group; o += kThreads) {
      const int i = row_of(o), column = o - i * of_group, j = unit * kUnit + column;
      if (column >= group_units * kUnit || j >= width) continue;
      auto total = [&](int at, int of) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) sum += sum_at(w, i, at);
        return p.bias != nullptr ? sum + to_float(p.bias[of]) : sum;
      };
      const int64_t to = i * p.out_stride + j;
      T* out = static_cast<T*>(p.out) + to;
      if (p.behind == Behind::silu_and_mul) {
        const int at = column / kUnit * 2 * kUnit + column % kUnit;
        const float gate = to_float(from_float<T>(total(at, j)));
        const float up = to_float(from_float<T>(total(at + kUnit, width + j)));
        *out = from_float<T>(silu(gate) * up);
      } else if (p.behind == Behind::add) {
        const T before = o == static_cast<int>(threadIdx.x) ? residual : *out;
        *out = from_float<T>(to_float(before) + to_float(from_float<T>(total(column, j))));
      } else if (p.float_out) {
        static_cast<float*>(p.out)[to] = total(column, j);
      } else {
        *out = from_float<T>(total(column, j));
      }
    }
    __syncthreads();
  }
}

template <class T, int kRows, int kTiles, int kChunks, int kDepth, int kUnderway, bool kHeld>
void launch_stream(const OpContext& ctx, StreamProduct<T> p, int blocks) {
  using Slots = StreamSlots<kTiles, kChunks, kDepth>;
  constexpr int kElement = static_cast<int>(sizeof(T));
  const bool paired = p.behind == Behind::silu_and_mul, normed = p.gain != nullptr;
  const int units = ceil_div(paired ? p.n / 2 : p.n, kUnit),
            segments = kHeld ? kHeldChunks / kChunks : ceil_div(p.k, Slots::kSegment);
  const int groups = ceil_div(ceil_div(units, blocks), paired ? kTiles / 2 : kTiles);
  const int slots = std::min(groups * segments, kDepth);
  const int sums_bytes = kWarps * p.m * (kTiles * kUnit + 8) * static_cast<int>(sizeof(float));
  p.units = units / blocks;
  p.one_more = units % blocks;
  auto aligned = [](int bytes) { return ceil_div(bytes, 128) * 128; };
  p.sums_in_ring = groups == 1;
  p.shape.x = normed ? aligned(p.k * kElement) : 0;
  p.shape.sums =
      p.shape.x + (kHeld ? 0 : aligned((normed ? segments : slots) * p.m * Slots::kSegment * kElement));
  p.shape.ring = p.shape.sums + (p.sums_in_ring ? 0 : aligned(sums_bytes));
  const int bytes = std::max({p.shape.ring + slots * Slots::kBytes, p.shape.sums + sums_bytes, kLeastBytes});
  auto kernel = rows_stream_kernel<T, kRows, kTiles, kChunks, kDepth, kUnderway, kHeld>;
  LADDER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  launch_kernel(ctx, kernel, static_cast<unsigned>(blocks), kThreads, static_cast<size_t>(bytes), p);
}

}  // namespace

void rows_stream(const OpContext& ctx, const RowsStreamArgs& args) {
  with_cuda_type(args.x.dtype(), [&](auto tag) {
    using T = decltype(tag);
    if constexpr (sizeof(T) == 2) {
      const StreamProduct<T> p{.x = cuda_data<T>(args.x),
                               .weight = cuda_data<T>(args.weight),
                               .bias = cuda_data<T>(args.bias),
                               .gain = cuda_data<T>(args.norm_weight),
                               .out = args.out.raw(),
                               .float_out = args.out.dtype() == DType::f32,
                               .behind = args.behind,
                               .m = static_cast<int>(args.x.dim(0)),
                               .n = static_cast<int>(args.weight.dim(0)),
                               .k = static_cast<int>(args.x.dim(1)),
                               .x_stride = args.x.stride(0),
                               .weight_stride = args.weight.stride(0),
                               .out_stride = args.out.stride(0),
                               .eps = static_cast<float>(args.eps),
                               .shape = {}};
      const bool paired = args.behind == Behind::silu_and_mul;
      const int units = ceil_div(paired ? p.n / 2 : p.n, kUnit);
      const int blocks = ctx.cuda->num_multiprocessors();
      const int tiles = ceil_div(units, blocks) * (paired ? 2 : 1);  // of a block
      // Of a few shapes the one that leaves the fewest tiles of a group empty.
      auto padded = [&](int group) { return ceil_div(tiles, group) * group; };
      auto with_shape = [&](auto rows, auto held) {
        // Fewer slots, or shorter ones, beside many rows of x; so many of them under way as measured best.
        constexpr bool kFew = rows.value <= 8, kMany = rows.value > 16, kHeld = held.value;
        if (tiles == 1)
          launch_stream<T, rows.value, 1, kMany ? 2 : 4, 4, kFew ? 1 : kMany ? 4 : 2, kHeld>(ctx, p, blocks);
        else if (tiles == 2)
          launch_stream<T, rows.value, 2, 2, kMany ? 3 : 4, kFew ? 1 : kMany ? 3 : 2, kHeld>(ctx, p, blocks);
        else if (padded(4) < padded(6))
          launch_stream<T, rows.value, 4, 2, kMany ? 2 : 3, kMany ? 2 : 1, kHeld>(ctx, p, blocks);
        else
          launch_stream<T, rows.value, 6, 1, kFew || kHeld ? 4 : 3,
                        kFew    ? 2
                        : kMany ? 3
                                : 1,
                        kHeld>(ctx, p, blocks);
      };
      auto with_rows = [&](auto rows) {
        if (p.k > kMaxHeld)
          with_shape(rows, std::false_type{});
        else
          with_shape(rows, std::true_type{});
      };
      if (p.m <= 8)
        with_rows(std::integral_constant<int, 8>{});
      else if (p.m <= 16)
        with_rows(std::integral_constant<int, 16>{});
      else
        with_shape(std::integral_constant<int, 32>{}, std::false_type{});
    }
  });
}

bool rows_stream_takes(const RowsStreamArgs& args) {
  const Tensor &x = args.x, &weight = args.weight;
  if (!weight.defined() || dtype_size(x.dtype()) != 2 || x.dim(0) > kMaxRows) return false;
  if (x.dim(1) == 0 || !is_packed(x) || !is_packed(weight)) return false;
  return !args.norm_weight.defined() ||
         (is_packed(args.norm_weight) && x.dim(0) <= kMaxNormedRows && x.dim(0) * x.dim(1) <= kMaxNormed);
}

namespace {
RowsStreamArgs stream_args(const MatmulArgs& args) {
  return {.x = args.x,
          .weight = args.weight,
          .bias = args.bias,
          .norm_weight = {},
          .eps = 0,
          .behind = Behind::store,
          .out = args.out};
}
}  // namespace

void matmul_rows_stream(const OpContext& ctx, const MatmulArgs& args) {
  rows_stream(ctx, stream_args(args));
}
bool matmul_takes_rows_stream(const MatmulArgs& args) {
  return rows_stream_takes(stream_args(args));
}

}  // namespace ladder

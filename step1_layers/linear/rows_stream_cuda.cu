// The matrix product for few rows as a stream of weights that never stops (sm_80).
#include <algorithm>

#include "step1_layers/core/packed.h"
#include "step1_layers/core/tensor_core.cuh"
#include "step1_layers/linear/matmul_cuda.cuh"
#include "step1_layers/linear/rows_stream.h"

namespace ladder {

namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kUnit = 8;    // rows of the weight: the columns of one mma
constexpr int kChunk = 32;  // of k: what a warp multiplies at a time
constexpr int kPad = 64;    // bytes between rows of x: eight lanes' 16-byte reads meet no bank twice
constexpr int kRingBytes = 96 << 10;  // leaves as much of a multiprocessor to the kernel behind
constexpr int kMaxRows = 16, kMaxNormed = 32768;

struct StreamShape {
  int x_stride;    // bytes of a normed row in shared memory
  int sums, ring;  // where they begin in shared memory, bytes
};

template <class T>
struct StreamProduct {
  const T *x, *weight, *bias, *gain;  // bias and gain: nullptr where there is none
  void* out;
  bool float_out;
  Behind behind;
  int m, n, k;
  int64_t x_stride, weight_stride, out_stride;
  float eps;
  StreamShape shape;
};

template <class T>
__device__ float silu(float x) {
  return x * __frcp_rn(1.0f + __expf(-x));
}

// The normed rows in shared memory, by all threads: a row belongs to 1, 2, 4 or 8 warps, a pack of it to one
// thread.
template <class T>
__device__ void norm_rows(const StreamProduct<T>& p, unsigned char* rows, const T* gains, float* partial) {
  constexpr int kSize = Pack<T>::kSize;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int log_warps = p.m >= 5 ? 0 : p.m >= 3 ? 1 : p.m == 2 ? 2 : 3;  // of a team, which has a row
  const int team_warps = 1 << log_warps, teams = kWarps >> log_warps, team = warp >> log_warps;
  const int step = team_warps * kWarp, packs = p.k / kSize;
  const int first = (warp & (team_warps - 1)) * kWarp + lane;
  for (int row = team; row < p.m + team; row += teams) {  // the same number of turns for all teams
    const bool inside = row < p.m;
    T* to = reinterpret_cast<T*>(rows + row * p.shape.x_stride);
    const T* from = p.x + row * p.x_stride;
    float sum = 0;
    for (int pack = first; inside && pack < packs; pack += 4 * step) {
      Pack<T> values[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (pack + j * step < packs) values[j] = load_pack(from + (pack + j * step) * kSize);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (pack + j * step >= packs) continue;
        store_pack(to + (pack + j * step) * kSize, values[j]);
#pragma unroll
        for (int e = 0; e < kSize; ++e) sum += to_float(values[j].value[e]) * to_float(values[j].value[e]);
      }
    }
    sum = warp_sum(sum);
    if (lane == 0) partial[warp] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < team_warps; ++w) sum += partial[team * team_warps + w];
    const float scale = rsqrtf(sum / static_cast<float>(p.k) + p.eps);
    for (int pack = first; inside && pack < packs; pack += step) {
      Pack<T> value = load_pack(to + pack * kSize);
      const Pack<T> gain = load_pack(gains + pack * kSize);
#pragma unroll
      for (int e = 0; e < kSize; ++e)
        value.value[e] = from_float<T>(to_float(value.value[e]) * scale * to_float(gain.value[e]));
      store_pack(to + pack * kSize, value);
    }
    __syncthreads();
  }
}

// A copy of the stream: L2 fetches the whole line of which a warp's instruction takes the half.
__device__ inline void copy_weights(uint32_t shared_address, const void* from, bool valid) {
  LADDER_SM80_ASM("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address), "l"(from),
                  "r"(valid ? 16 : 0)
                  : "memory");
}

// The ring of a block: kDepth slots, each one segment of k of all rows of a group.
template <int kTiles, int kChunks>
struct StreamSlots {
  static constexpr int kSegment = kWarps * kChunk * kChunks;
  static constexpr int kBytes = kTiles * kChunks * kThreads * 16;
  static constexpr int kDepth = kRingBytes / kBytes;
};

// rows_stream (sm_90)
// bf16 or f16, up to 16 rows of x, everything in whole 16-byte packs; a normed x up to 32768 elements in all,
// so that its rows fit beside the ring. One block per multiprocessor computes its even share of the weight's
// rows, in groups of kTiles units of eight: a unit is the B operand of mma, the rows of x are the A operand,
// sixteen for the price of one. The eight warps share k (each 32 columns times kChunks of every segment) and
// add up in shared memory at the end of a group.
//
// The rung below has as many loads in flight as registers hold, and between two turns of loads memory rests.
// Here every thread copies what it will multiply itself, asynchronously, into a queue of its own in shared
// memory: 96 KB per multiprocessor under way at any time, and no barrier between who copies and who
// multiplies. (As in rows_tensor_core the order of k is free, and a lane's 16 bytes are its mma operands as
// they come.) The weights do not depend on the kernel in front, so the queue is filled before that has ended:
// the products of a layer become one stream, and a product whose weights fit the ring (those of Qwen3-0.6B)
// finds all of them there.
//
// In front: a block norms the few rows for itself, from L2, which is quicker than a kernel that does it once.
// Behind: the columns of a block are its own, so that it adds them to the residual stream or, with the gate
// and up units of the same columns in one group, applies the activation.
template <class T, int kRows, int kTiles, int kChunks>
__global__ void __launch_bounds__(kThreads) rows_stream_kernel(StreamProduct<T> p) {
  using Slots = StreamSlots<kTiles, kChunks>;
  constexpr int kSegment = Slots::kSegment, kDepth = Slots::kDepth;
  constexpr int kHalves = (kRows + 7) / 8;      // groups of eight rows of x
  constexpr int kBlocks = (kRows + 15) / 16;    // groups of sixteen: the rows of one mma
  constexpr int kChains = kTiles <= 2 ? 2 : 1;  // of dependent mma per output
  constexpr int kColumns = kTiles * kUnit + 8;  // of a row of sums: spreads the rows over the banks
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float partial[kWarps];

  allow_next_kernel();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int segments = (p.k + kSegment - 1) / kSegment;
  // Units of eight rows of the weight (silu_and_mul: pairs of units) are dealt out evenly.
  const bool paired = p.behind == Behind::silu_and_mul;
  const int per_unit = paired ? 2 : 1, width = p.n / per_unit;
  const auto units = static_cast<unsigned>((width + kUnit - 1) / kUnit);  // times blocks: below 2^32
  const int begin = static_cast<int>(units * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(units * (blockIdx.x + 1) / gridDim.x);
  const int units_per_group = paired ? kTiles / 2 : kTiles;
  // Output o of a group: column o % of_group of row o / of_group.
  constexpr int kOutputs = kTiles * kUnit, kPairedOutputs = kTiles > 1 ? kOutputs / 2 : 1;
  const int of_group = paired ? kPairedOutputs : kOutputs;
  auto row_of = [&](int o) { return paired ? o / kPairedOutputs : o / kOutputs; };
  const int first_a = warp * kChunk * kChunks + t * 8;  // this lane's column of every segment

  // A thread's own queue: what it copies is what it multiplies.
  const uint32_t ring = shared_address(shared) + p.shape.ring + threadIdx.x * 16;
  int fetch_unit = begin, fetch_segment = 0, fetch_slot = 0;
  auto fetch = [&] {
    if (fetch_unit < end) {
      const int a0 = fetch_segment * kSegment + first_a;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int unit = fetch_unit + (paired ? tile / 2 : tile), row = unit * kUnit + g;
        const bool inside = unit < end && row < width;
        const T* from = p.weight + (row + (paired && tile % 2 ? width : 0)) * p.weight_stride + a0;
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          const bool valid = inside && a0 + c * kChunk < p.k;
          copy_weights(ring + ((fetch_slot * kTiles + tile) * kChunks + c) * kThreads * 16,
                       valid ? from + c * kChunk : p.weight, valid);
        }
      }
      if (++fetch_segment == segments) {
        fetch_segment = 0;
        fetch_unit += units_per_group;
      }
      if (++fetch_slot == kDepth) fetch_slot = 0;
    }
    commit_copies();
  };
#pragma unroll
  for (int s = 0; s < kDepth; ++s) fetch();

  T* gains = reinterpret_cast<T*>(shared);
  unsigned char* rows = shared;
  if (p.gain != nullptr) {
    rows += p.k * sizeof(T);
    for (int pack = threadIdx.x; pack < p.k / Pack<T>::kSize; pack += kThreads)
      store_pack(gains + pack * Pack<T>::kSize, load_pack(p.gain + pack * Pack<T>::kSize));
  }
  wait_for_previous_kernel();
  const T* x = p.x;
  int64_t x_stride = p.x_stride;
  if (p.gain != nullptr) {
    norm_rows(p, rows, gains, partial);
    x = reinterpret_cast<const T*>(rows);
    x_stride = p.shape.x_stride / static_cast<int>(sizeof(T));
  }

  float* const sums_of_warps = reinterpret_cast<float*>(shared + p.shape.sums);
  constexpr uint4 kZero{0, 0, 0, 0};
  uint4 xs[kChunks][kHalves], next_xs[kChunks][kHalves];
  auto load_x = [&](int segment, uint4(&to)[kChunks][kHalves]) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int a = segment * kSegment + first_a + c * kChunk;
#pragma unroll
      for (int h = 0; h < kHalves; ++h)
        to[c][h] = h * 8 + g < p.m && a < p.k
                       ? *reinterpret_cast<const uint4*>(x + (h * 8 + g) * x_stride + a)
                       : kZero;
    }
  };
  load_x(0, next_xs);
  int slot = 0;
  for (int unit = begin; unit < end; unit += units_per_group) {
    const int group_units = min(units_per_group, end - unit), tiles = group_units * per_unit;
    // The residual of the thread's first output, on its way while the product is computed.
    const int first_i = row_of(threadIdx.x), first_j = unit * kUnit + threadIdx.x - first_i * of_group;
    T residual = from_float<T>(0.0f);
    if (p.behind == Behind::add && first_i < p.m && first_j < width)
      residual = static_cast<const T*>(p.out)[first_i * p.out_stride + first_j];
    float sums[kChains][kBlocks][kTiles][4] = {};
    for (int segment = 0; segment < segments; ++segment) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
#pragma unroll
        for (int h = 0; h < kHalves; ++h) xs[c][h] = next_xs[c][h];
      load_x(segment + 1 < segments ? segment + 1 : 0, next_xs);  // a turn ahead: x may come from L2
      wait_copies<kDepth - 1>();
      const unsigned char* from = shared + p.shape.ring + threadIdx.x * 16;
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          if (kTiles > 2 && tile >= tiles) continue;
          const uint4 w =
              *reinterpret_cast<const uint4*>(from + ((slot * kTiles + tile) * kChunks + c) * kThreads * 16);
#pragma unroll
          for (int b = 0; b < kBlocks; ++b) {
            const uint4 low = xs[c][2 * b], high = 2 * b + 1 < kHalves ? xs[c][2 * b + 1] : kZero;
            mma_16x8x16<T>(sums[0][b][tile], {low.x, high.x, low.y, high.y}, {w.x, w.y});
            mma_16x8x16<T>(sums[kChains - 1][b][tile], {low.z, high.z, low.w, high.w}, {w.z, w.w});
          }
        }
      fetch();
      if (++slot == kDepth) slot = 0;
    }

    // Row g (and g + 8, ...) of x at columns 2t and 2t + 1 of every unit; the warps' sums are added in order.
    auto sum_at = [&](int w, int i, int column) -> float& {
      return sums_of_warps[(w * p.m + i) * kColumns + column];
    };
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = b * 16 + half * 8 + g;
        if (i >= p.m) continue;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          float low = sums[0][b][tile][2 * half], high = sums[0][b][tile][2 * half + 1];
          if constexpr (kChains == 2) {
            low += sums[1][b][tile][2 * half];
            high += sums[1][b][tile][2 * half + 1];
          }
          *reinterpret_cast<float2*>(&sum_at(warp, i, tile * kUnit + 2 * t)) = float2{low, high};
        }
      }
    __syncthreads();
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
        *out = from_float<T>(silu<T>(gate) * up);
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

template <class T, int kRows, int kTiles, int kChunks>
void launch_stream(const OpContext& ctx, StreamProduct<T> p, int blocks) {
  using Slots = StreamSlots<kTiles, kChunks>;
  const int units = ceil_div(p.behind == Behind::silu_and_mul ? p.n / 2 : p.n, kUnit);
  const int per_group = p.behind == Behind::silu_and_mul ? kTiles / 2 : kTiles;
  const int items = ceil_div(ceil_div(units, blocks), per_group) * ceil_div(p.k, Slots::kSegment);
  const int row_bytes = p.k * static_cast<int>(sizeof(T));
  const int sums_bytes = kWarps * p.m * (kTiles * kUnit + 8) * static_cast<int>(sizeof(float));
  p.shape.x_stride = ceil_div(row_bytes, 128) * 128 + kPad;
  p.shape.sums = p.gain != nullptr ? row_bytes + p.m * p.shape.x_stride : 0;
  p.shape.ring = ceil_div(p.shape.sums + sums_bytes, 128) * 128;
  const int bytes = p.shape.ring + std::min(items, Slots::kDepth) * Slots::kBytes;
  auto kernel = rows_stream_kernel<T, kRows, kTiles, kChunks>;
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
      const int blocks = std::min(units, ctx.cuda->num_multiprocessors());
      const int tiles = ceil_div(units, blocks) * (paired ? 2 : 1);  // of a block
      // Of a few shapes the one that leaves no tile of a group empty. Many rows of x that are not normed come
      // from L2 anew for every group: large groups.
      const bool many = p.gain == nullptr && p.m > 8;
      auto with_rows = [&](auto rows) {
        if (tiles == 1)
          launch_stream<T, rows.value, 1, 4>(ctx, p, blocks);
        else if (tiles == 2 || (tiles == 6 && !paired && !many))
          launch_stream<T, rows.value, 2, 2>(ctx, p, blocks);
        else if (tiles == 6 && paired)
          launch_stream<T, rows.value, 6, 1>(ctx, p, blocks);
        else
          launch_stream<T, rows.value, 4, 2>(ctx, p, blocks);
      };
      if (p.m <= 8)
        with_rows(std::integral_constant<int, 8>{});
      else
        with_rows(std::integral_constant<int, 16>{});
    }
  });
}

bool rows_stream_takes(const RowsStreamArgs& args) {
  const Tensor &x = args.x, &weight = args.weight;
  if (!weight.defined() || dtype_size(x.dtype()) != 2 || x.dim(0) > kMaxRows) return false;
  if (x.dim(1) == 0 || !is_packed(x) || !is_packed(weight)) return false;
  return !args.norm_weight.defined() || (is_packed(args.norm_weight) && x.dim(0) * x.dim(1) <= kMaxNormed);
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

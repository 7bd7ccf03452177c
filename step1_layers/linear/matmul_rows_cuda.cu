// The matrix product for few rows: one pass over the weight, at the speed of memory.
#include <algorithm>

#include "step1_layers/core/packed.h"
#include "step1_layers/core/tensor_core.cuh"
#include "step1_layers/linear/matmul_cuda.cuh"

namespace ladder {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int64_t kMaxRows = 16;

// Calls fn(std::integral_constant<int, rows>) with the number of rows rounded up to a power of two, so that
// the sums of all rows are registers.
template <int max_rows, class Fn>
void with_rows(int64_t m, Fn&& fn) {
  if constexpr (max_rows > 1)
    if (m <= max_rows / 2) return with_rows<max_rows / 2>(m, fn);
  fn(std::integral_constant<int, max_rows>{});
}

// warp
// Any type, up to 16 rows. A warp reads one row of the weight, 32 neighbouring elements at a time, and adds
// its products with all rows of x; a shuffle reduction ends it. The weight is read once for all rows, where
// the tiled rungs would waste most of a tile.
template <int rows, class T, class Out>
__global__ void __launch_bounds__(kThreads) rows_warp(Product<T, Out> p) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t j = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (j >= p.n) return;
  const T* weight = p.weight + j * p.weight_stride;
  float sums[rows] = {};
  for (int64_t a = lane; a < p.k; a += kWarp) {
    const float w = to_float(weight[a]);
#pragma unroll
    for (int i = 0; i < rows; ++i)
      if (i < p.m) sums[i] = fmaf(to_float(p.x[i * p.x_stride + a]), w, sums[i]);
  }
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    const float sum = warp_sum(sums[i]);
    if (lane == 0 && i < p.m) p.store(i, j, sum);
  }
}

// vectorized
// Up to 2 rows, everything in whole 16-byte packs. As the rung below, with 16-byte loads and four of them in
// flight per lane before the first is used: 2 KB per warp. The weight passes L1 by, so that x stays there,
// and its first loads do not wait for the kernel that makes x. Beyond two rows the conversions and
// multiply-adds, not memory, set the time.
constexpr int kInFlight = 4;
template <int rows, class T, class Out>
__global__ void __launch_bounds__(kThreads) rows_vectorized(Product<T, Out> p) {
  constexpr int kSize = Pack<T>::kSize, kStep = kWarp * kSize;
  allow_next_kernel();
  const int64_t j = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const T* weight = p.weight + j * p.weight_stride;
  uint4 raw[kInFlight];
  auto fetch = [&](int64_t first) {
#pragma unroll
    for (int s = 0; s < kInFlight; ++s)
      raw[s] = load_streaming(weight + first + s * kStep, j < p.n && first + s * kStep < p.k);
  };
  fetch(lane * kSize);
  wait_for_previous_kernel();
  float sums[rows] = {};
  for (int64_t first = lane * kSize; first < p.k; first += kInFlight * kStep) {
#pragma unroll
    for (int s = 0; s < kInFlight; ++s) {
      if (first + s * kStep >= p.k) continue;
      const Pack<T>& w = *reinterpret_cast<const Pack<T>*>(&raw[s]);
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        if (i >= p.m) continue;
        const Pack<T> x = load_pack(p.x + i * p.x_stride + first + s * kStep);
#pragma unroll
        for (int e = 0; e < kSize; ++e) sums[i] = fmaf(to_float(x.value[e]), to_float(w.value[e]), sums[i]);
      }
    }
    fetch(first + kInFlight * kStep);
  }
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    const float sum = warp_sum(sums[i]);
    if (lane == 0 && i < p.m && j < p.n) p.store(i, j, sum);
  }
}

// rows_tensor_core (sm_80)
// bf16 or f16, up to 16 rows, everything in whole 16-byte packs. A block takes sixteen rows of the weight as
// the A operand of mma, x transposed as B: 4096 multiply-adds of 16 x 16 weights with eight rows of x are one
// instruction, so sixteen rows cost what one does. The order in which k is summed is free, and chosen so that
// fragments come straight from global memory in 16-byte loads, no shared memory and no exchange: lane 4 g + t
// loads eight neighbouring elements of weight rows g and g + 8 and of x rows g (and g + 8), and calls the
// first four of them columns 2t, 2t + 1, 2t + 8, 2t + 9 of one product, the others those of a second. Each
// warp has eight loads in flight (4 KB), the first of them before the previous kernel has ended; the eight
// warps take turns along k and add up in shared memory.
//
// rows_split_k
// The same; several blocks share sixteen rows of a weight that has too few of them to fill the chip. Each
// writes its part; the one that finishes last adds the parts in order, so the result is the same in every
// run.
constexpr int kWeightRows = 16, kChunk = 32, kChunks = 4,
              kStep = kChunk * kChunks;          // of k, per warp and turn
template <int column_tiles, class T, class Out>  // of eight rows of x
__global__ void __launch_bounds__(kThreads, 2)
    rows_tensor_core(Product<T, Out> p, int splits, int64_t k_per_split, float* partial, int* counters) {
  constexpr int kOutputs = kWeightRows * 8 * column_tiles;
  __shared__ float sums_of_warps[kWarps][kOutputs];
  __shared__ bool is_last;
  allow_next_kernel();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const int64_t tile = blockIdx.x / splits, first_j = tile * kWeightRows;
  const int split = static_cast<int>(blockIdx.x % splits);
  const int64_t begin = split * k_per_split, end = begin + k_per_split < p.k ? begin + k_per_split : p.k;

  const bool has_low = first_j + g < p.n, has_high = first_j + g + 8 < p.n;
  const T* low = p.weight + (first_j + g) * p.weight_stride;
  const T* high = low + 8 * p.weight_stride;
  uint4 w[2][kChunks];
  auto fetch = [&](int64_t turn) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int64_t a = turn + c * kChunk + t * 8;
      w[0][c] = load_streaming(low + a, has_low && a < end);
      w[1][c] = load_streaming(high + a, has_high && a < end);
    }
  };
  fetch(begin + warp * kStep);
  wait_for_previous_kernel();
  float sums[column_tiles][4] = {};
  for (int64_t turn = begin + warp * kStep; turn < end; turn += kWarps * kStep) {
    uint4 x[column_tiles][kChunks];
    constexpr uint4 kZero{0, 0, 0, 0};
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int64_t a = turn + c * kChunk + t * 8;
#pragma unroll
      for (int tile = 0; tile < column_tiles; ++tile)
        x[tile][c] = tile * 8 + g < p.m && a < end
                         ? *reinterpret_cast<const uint4*>(p.x + (tile * 8 + g) * p.x_stride + a)
                         : kZero;
    }
    __syncwarp();  // holds the compiler back from moving the loads to their first use, two at a time
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int tile = 0; tile < column_tiles; ++tile) {
        mma_16x8x16<T>(sums[tile], {w[0][c].x, w[1][c].x, w[0][c].y, w[1][c].y},
                       {x[tile][c].x, x[tile][c].y});
        mma_16x8x16<T>(sums[tile], {w[0][c].z, w[1][c].z, w[0][c].w, w[1][c].w},
                       {x[tile][c].z, x[tile][c].w});
      }
    fetch(turn + kWarps * kStep);
  }

  // sums[tile]: weight rows g and g + 8 times rows 2t and 2t + 1 of x. Output o is weight row o % 16 of x row
  // o / 16.
#pragma unroll
  for (int tile = 0; tile < column_tiles; ++tile)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      sums_of_warps[warp][(tile * 8 + 2 * t + e % 2) * kWeightRows + g + e / 2 * 8] = sums[tile][e];
  __syncthreads();

  const int output = threadIdx.x;
  const int64_t i = output / kWeightRows, j = first_j + output % kWeightRows;
  float sum = 0;
  if (output < kOutputs)
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums_of_warps[w][output];
  const bool writes = output < kOutputs && i < p.m && j < p.n;
  if (splits == 1) {
    if (writes) p.store(i, j, sum);
    return;
  }

  float* parts = partial + tile * splits * kOutputs;
  if (output < kOutputs) parts[split * kOutputs + output] = sum;
  __threadfence();  // the part is visible to a block that sees the counter grow
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(&counters[tile], 1) == splits - 1;
    if (is_last) counters[tile] = 0;  // ready for the next call
  }
  __syncthreads();
  if (!is_last || !writes) return;
  __threadfence();
  sum = 0;
  for (int s = 0; s < splits; ++s) sum += __ldcg(&parts[s * kOutputs + output]);
  p.store(i, j, sum);
}

// How many blocks share sixteen rows of the weight: enough to occupy half of the multiprocessors, but each
// with a turn for every warp. Where there are as many blocks without a split, counting and adding up costs
// more than the other half brings: 4.4 against 3.7 us for a weight of 1024 x 2048 on an H200.
int64_t wanted_splits(const MatmulArgs& args, int64_t multiprocessors) {
  const int64_t tiles = ceil_div<int64_t>(args.weight.dim(0), kWeightRows);
  const int64_t turns = ceil_div<int64_t>(args.x.dim(1), kWarps * kStep);
  return std::clamp<int64_t>(multiprocessors / 2 / tiles, 1, std::max<int64_t>(turns, 1));
}

void run_tensor_core(const OpContext& ctx, const MatmulArgs& args, int64_t splits) {
  const int64_t tiles = ceil_div<int64_t>(args.weight.dim(0), kWeightRows);
  const int64_t k_per_split = ceil_div<int64_t>(ceil_div<int64_t>(args.x.dim(1), splits), kStep) * kStep;
  auto* partial = static_cast<float*>(ctx.cuda->workspace());
  with_product(args, [&](const auto& p) {
    using T = std::remove_cvref_t<decltype(*p.x)>;
    using Out = std::remove_cvref_t<decltype(*p.out)>;
    if constexpr (sizeof(T) == 2) {
      const auto blocks = static_cast<unsigned>(tiles * splits);
      if (p.m <= 8)
        launch_kernel(ctx, rows_tensor_core<1, T, Out>, blocks, kThreads, 0, p, splits, k_per_split, partial,
                      ctx.cuda->counters());
      else
        launch_kernel(ctx, rows_tensor_core<2, T, Out>, blocks, kThreads, 0, p, splits, k_per_split, partial,
                      ctx.cuda->counters());
    }
  });
}

bool all_packed(const MatmulArgs& args) {
  return args.x.dim(1) > 0 && is_packed(args.x) && is_packed(args.weight);
}

}  // namespace

void matmul_rows_warp(const OpContext& ctx, const MatmulArgs& args) {
  with_product(args, [&](const auto& p) {
    using T = std::remove_cvref_t<decltype(*p.x)>;
    using Out = std::remove_cvref_t<decltype(*p.out)>;
    with_rows<kMaxRows>(p.m, [&](auto rows) {
      const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(p.n, kWarps));
      launch_kernel(ctx, rows_warp<rows.value, T, Out>, blocks, kThreads, 0, p);
    });
  });
}
bool matmul_takes_rows_warp(const MatmulArgs& args) {
  return args.x.dim(0) <= kMaxRows;
}

void matmul_rows_vectorized(const OpContext& ctx, const MatmulArgs& args) {
  with_product(args, [&](const auto& p) {
    using T = std::remove_cvref_t<decltype(*p.x)>;
    using Out = std::remove_cvref_t<decltype(*p.out)>;
    with_rows<2>(p.m, [&](auto rows) {
      const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(p.n, kWarps));
      launch_kernel(ctx, rows_vectorized<rows.value, T, Out>, blocks, kThreads, 0, p);
    });
  });
}
bool matmul_takes_rows_vectorized(const MatmulArgs& args) {
  return args.x.dim(0) <= 2 && all_packed(args);
}

void matmul_rows_tensor_core(const OpContext& ctx, const MatmulArgs& args) {
  run_tensor_core(ctx, args, 1);
}
bool matmul_takes_rows_tensor_core(const MatmulArgs& args) {
  return dtype_size(args.x.dtype()) == 2 && args.x.dim(0) <= kMaxRows && all_packed(args);
}

void matmul_rows_split_k(const OpContext& ctx, const MatmulArgs& args) {
  run_tensor_core(ctx, args, wanted_splits(args, ctx.cuda->num_multiprocessors()));
}
bool matmul_takes_rows_split_k(const MatmulArgs& args) {
  // A weight with more rows occupies the chip without a split.
  return matmul_takes_rows_tensor_core(args) && args.weight.dim(0) <= 512;
}

}  // namespace ladder

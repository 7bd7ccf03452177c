// The product of many rows with a weight of which two of four are kept, on the tensor cores' sparse instruction (sm_90a).
#include <algorithm>
#include <iterator>
#include <limits>

#include "step1_layers/core/cluster.cuh"
#include "step1_layers/core/packed.h"
#include "step1_layers/core/tensor_map_cuda.h"
#include "step8_advanced/quantization/kernels/cluster_launch.cuh"
#include "step8_advanced/quantization/kernels/sparse_matmul_cuda.h"
#include "step8_advanced/quantization/kernels/tile_products.cuh"
#include "step8_advanced/quantization/kernels/wgmma_shapes.cuh"

namespace ladder {

namespace {

using namespace tile_products;

constexpr int kRecordBytes = static_cast<int>(kSparseRecordBytes);

// A stage has a record for every 64 rows: values, which wgmma takes as they lie, and indices, of which a thread has a word.
template <class T, class Shape>
struct SparseRows {
  static constexpr int kBytes = Shape::kRows / 64 * kRecordBytes;
  static constexpr bool kAddsInFloat = false;
  using Sum = float;
  using Operand = uint32_t;

  Tokens tokens;
  const uint8_t* records;  // [blocks of 64 rows, parts, kRecordBytes]
  int blocks;
  const T* bias;

  __device__ static int bytes() { return kBytes; }
  __device__ void copy(int row_tile, int part, uint32_t to, uint32_t barrier) const {
#pragma unroll
    for (int i = 0; i < Shape::kRows / 64; ++i) {
      const int block =
          min(row_tile * (Shape::kRows / 64) + i, blocks - 1);  // below the last one nothing is stored
      copy_bytes(to + i * kRecordBytes, records + (int64_t{block} * tokens.parts + part) * kRecordBytes,
                 kRecordBytes, barrier);
    }
  }
  __device__ static Operand load(uint32_t rows, int group) {
    Operand indices;
    asm volatile("ld.shared.u32 %0, [%1];"
                 : "=r"(indices)
                 : "r"(rows + group * kRecordBytes + static_cast<int>(kSparseValueBytes) +
                       static_cast<int>(threadIdx.x) % kWarpgroup * 4)
                 : "memory");
    return indices;
  }
  __device__ static void multiply(Sum (&d)[Shape::kSums], Operand indices, uint32_t rows, int group,
                                  uint32_t x, bool add) {
    const uint64_t a = wgmma_core_matrices(rows + group * kRecordBytes, 128, 512), b = wgmma_tile(x);
    // 32 columns are two core matrices of values, and 64 bytes of a row of x.
    wgmma_sparse<T, 0>(d, a, b, indices, add);
    wgmma_sparse<T, 1>(d, a + 256 / 16, b + 64 / 16, indices, true);
  }
};

// Where a tile's sums of the block's partner come, behind the ring.
template <class T, class Shape>
__device__ float* sums_of_partner() {
  using S = Stages<SparseRows<T, Shape>, Shape>;
  extern __shared__ unsigned char shared[];
  const uint32_t from_begin = 1023u - (shared_address(shared) + 1023) % 1024;
  return reinterpret_cast<float*>(shared + from_begin + S::kCount * S::kBytes);
}

// Of two blocks that have shared out a tile's columns the second one gives its sums to the first; whether this is the first, which has
// all of them then. By the threads that multiply, while the others do arrive_with_sums().
template <class Shape>
__device__ bool gather_sums(float (&d)[Shape::kRowGroups][Shape::kSums], float* partner) {
  constexpr int kMultiply = Shape::kConsumers * kWarpgroup;
  const int thread = static_cast<int>(threadIdx.x) - kWarpgroup;
  const bool first = cluster_rank() == 0;
  cluster_wait();  // the other one has started
  if (!first) {
    float* const to = in_block(partner, 0);
#pragma unroll
    for (int group = 0; group < Shape::kRowGroups; ++group)
#pragma unroll
      for (int i = 0; i < Shape::kSums; ++i)
        to[(group * Shape::kSums + i) * kMultiply + thread] = d[group][i];
  }
  cluster_sync();
  if (!first) return false;
#pragma unroll
  for (int group = 0; group < Shape::kRowGroups; ++group)
#pragma unroll
    for (int i = 0; i < Shape::kSums; ++i)
      d[group][i] += partner[(group * Shape::kSums + i) * kMultiply + thread];
  return true;
}
__device__ void arrive_with_sums() {
  __syncwarp();
  cluster_wait();
  cluster_sync();
}

// sparse wgmma (sm_90a): x [m, k] and the weight's values in bf16 or f16, rows of x in whole packs; out [m, n] in that or f32. What is
// faster than a dense product on wgmma is that half as many multiplications are made and of the weight 9/16 is read. What is not: for
// as many multiplications twice as much of x is read from shared memory, all that it can give: an instruction of 64 x 256 x 32 takes
// 128 clocks, in which it reads 16 KB of x, 128 bytes a clock, and its 2 KB of values. So the bound is shared memory, with what the
// copies write into it, and not the tensor cores: some 0.57 of their rate. `split`: two blocks share out the columns of each tile, where
// there are so few that half of the multiprocessors would have none; each pair has one tile then.
template <class T, class Shape, bool split>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    sparse_wgmma_kernel(const __grid_constant__ SparseRows<T, Shape> p) {
  if constexpr (split) cluster_arrive();
  multiply_tiles<Shape>(p, [&](int row_tile, int token_tile, auto& d) {
    if constexpr (split)
      if (!gather_sums<Shape>(d, sums_of_partner<T, Shape>())) return;
    const int thread = static_cast<int>(threadIdx.x) - kWarpgroup, lane = thread % kWarp;
#pragma unroll
    for (int group = 0; group < Shape::kRowGroups; ++group) {
      const int row = row_tile * Shape::kRows + (thread / kWarpgroup * Shape::kRowGroups + group) * 64 +
                      thread % kWarpgroup / kWarp * 16;
      float bias[2] = {};
      if (p.bias != nullptr)
        for (int lower = 0; lower < 2; ++lower)
          if (const int j = row + lane / 4 + 8 * lower; j < p.tokens.n) bias[lower] = to_float(p.bias[j]);
      float y[Shape::kSums];
#pragma unroll
      for (int i = 0; i < Shape::kSums; ++i) y[i] = d[group][i] + bias[i % 4 / 2];
      store_transposed<T>(p.tokens, row, p.tokens.n, token_tile * p.tokens.box, y);
    }
  });
  if constexpr (split)
    if (threadIdx.x < kWarpgroup) arrive_with_sums();
}

template <class T, class Shape, bool split>
void launch(const OpContext& ctx, const SparseMatmulArgs& args) {
  const SparseWeight& weight = *args.weight;
  const int64_t m = args.x.dim(0), k = weight.k, stride = m > 1 ? args.x.stride(0) : k;
  SparseRows<T, Shape> p{};
  p.tokens.box = tokens_of_tile(m, Shape::kTokens);
  p.tokens.x = tensor_map({.data = args.x.raw(),
                           .dtype = args.x.dtype(),
                           .sizes = {k, m, 1, 1, 1},
                           .strides = {stride, stride * m, stride * m, stride * m},
                           .box = {64, p.tokens.box, 1, 1, 1}});
  p.tokens.items = {.row_tiles = static_cast<int>(ceil_div<int64_t>(weight.n, Shape::kRows)),
                    .token_tiles = static_cast<int>(ceil_div<int64_t>(m, p.tokens.box))};
  p.tokens.parts = static_cast<int>(weight.records.dim(1));
  p.tokens.m = static_cast<int>(m);
  p.tokens.n = static_cast<int>(weight.n);
  p.tokens.out = args.out.raw();
  p.tokens.out_stride = args.out.stride(0);
  p.tokens.float_out = args.out.dtype() == DType::f32;
  p.tokens.in_packs = !p.tokens.float_out && is_packed(args.out);
  p.records = cuda_data<uint8_t>(weight.records);
  p.blocks = static_cast<int>(weight.records.dim(0));
  p.bias = cuda_data<T>(args.bias);
  auto kernel = sparse_wgmma_kernel<T, Shape, split>;
  constexpr int kSums = split ? Shape::kRows * Shape::kTokens * static_cast<int>(sizeof(float)) : 0;
  constexpr int kSharedBytes = Stages<SparseRows<T, Shape>, Shape>::kSharedBytes + kSums;
  static_assert(kSharedBytes <= kMostShared - 1024);
  ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), kSharedBytes);
  if constexpr (split) {
    p.tokens.split = 2;
    launch_in_clusters(ctx, kernel, 2, 2 * p.tokens.items.count(), Shape::kThreads, kSharedBytes, p);
  } else {
    const int blocks = std::min(ctx.cuda->num_multiprocessors(), p.tokens.items.count());
    launch_kernel(ctx, kernel, static_cast<unsigned>(blocks), Shape::kThreads, kSharedBytes, p);
  }
}

// A shape of tiles, and what a product takes with it on an H200, in clocks: fitted to products of 64 to 2048 tokens with weights of
// 8192 x 8192, 28672 x 4096 and 4096 x 14336, whose rows of x end with a tile's.
struct TileChoice {
  int rows, tokens;
  bool split;
  void (*run)(const OpContext& ctx, const SparseMatmulArgs& args);

  double clocks_of_stage(int box) const { return 190 + 1.2 * rows + 0.2 * box + 0.013 * rows * tokens; }
  // Of the multiprocessor that has most to do; infinite where the shape cannot be.
  double clocks_of(const SparseMatmulArgs& args, int multiprocessors) const {
    const int64_t m = args.x.dim(0), parts = args.weight->records.dim(1);
    const int box = tokens_of_tile(m, tokens);
    const int64_t items = ceil_div<int64_t>(args.weight->n, rows) * ceil_div<int64_t>(m, box);
    if (split) {
      constexpr double kOfPartner = 8000;
      if (2 * items > multiprocessors || parts < 2) return std::numeric_limits<double>::infinity();
      return static_cast<double>(ceil_div<int64_t>(parts, 2)) * clocks_of_stage(box) + kOfPartner;
    }
    return static_cast<double>(ceil_div<int64_t>(items, multiprocessors) * parts) * clocks_of_stage(box);
  }
};

template <int consumers, int row_groups, int tokens, bool split = false>
constexpr TileChoice choice() {
  using Shape = TileShape<consumers, row_groups, tokens>;
  return {Shape::kRows, tokens, split, [](const OpContext& ctx, const SparseMatmulArgs& args) {
            if (args.x.dtype() == DType::f16)
              launch<__half, Shape, split>(ctx, args);
            else
              launch<__nv_bfloat16, Shape, split>(ctx, args);
          }};
}
constexpr TileChoice kChoices[] = {choice<1, 1, 64>(),       choice<1, 1, 128>(), choice<1, 1, 192>(),
                                   choice<1, 1, 256>(),      choice<2, 1, 64>(),  choice<2, 1, 128>(),
                                   choice<2, 1, 192>(),      choice<2, 1, 256>(), choice<2, 2, 64>(),
                                   choice<2, 2, 128>(),      choice<2, 2, 192>(), choice<1, 1, 64, true>(),
                                   choice<1, 1, 128, true>()};

}  // namespace

// Few tokens in small tiles, so that as many multiprocessors as can be read the weight. Of many, whose tiles fill all multiprocessors
// again and again, power decides, and the largest tiles read least: 2048 tokens of 8192 x 8192 take 234 us with them, 272 with the
// next best.
void sparse_matmul_wgmma(const OpContext& ctx, const SparseMatmulArgs& args) {
  constexpr int64_t kManyTokens = 1024;
  using Largest = TileShape<2, 2, 192>;
  const int multiprocessors = ctx.cuda->num_multiprocessors();
  const int64_t m = args.x.dim(0);
  const int64_t items =
      ceil_div<int64_t>(args.weight->n, Largest::kRows) * ceil_div<int64_t>(m, Largest::kTokens);
  if (m > kManyTokens && items >= 2 * multiprocessors) return choice<2, 2, 192>().run(ctx, args);
  const auto* best = std::min_element(
      std::begin(kChoices), std::end(kChoices), [&](const TileChoice& a, const TileChoice& b) {
        return a.clocks_of(args, multiprocessors) < b.clocks_of(args, multiprocessors);
      });
  best->run(ctx, args);
}

bool sparse_matmul_takes_wgmma(const SparseMatmulArgs& args) {
  return args.x.dim(1) > 0 && is_packed(args.x);
}

}  // namespace ladder

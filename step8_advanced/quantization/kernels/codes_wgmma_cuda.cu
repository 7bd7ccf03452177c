// The rung for many rows of rounded activations on a GPU: codes of 8 bits on both sides, multiplied by wgmma as they are (sm_90a).
#include <algorithm>
#include <optional>
#include <type_traits>

#include "step1_layers/core/error.h"
#include "step1_layers/core/packed.h"
#include "step1_layers/core/tensor_map_cuda.h"
#include "step8_advanced/quantization/kernels/cluster_launch.cuh"
#include "step8_advanced/quantization/kernels/eight_bit_codes.h"
#include "step8_advanced/quantization/kernels/eight_bit_rows_cuda.h"
#include "step8_advanced/quantization/kernels/quantized_matmul_cuda.h"
#include "step8_advanced/quantization/kernels/rows_stream_cuda.h"
#include "step8_advanced/quantization/kernels/scaled_sum.cuh"
#include "step8_advanced/quantization/kernels/sums_of_partner.cuh"
#include "step8_advanced/quantization/kernels/tile_products.cuh"
#include "step8_advanced/quantization/kernels/wgmma_shapes.cuh"

namespace ladder {

namespace {

using namespace tile_products;

// Up to so many rows of x the time is that of reading the weight: small tiles, so that every multiprocessor reads.
constexpr int kFewRows = 64;

// Rows of a tile that may have `most`: as even as eights go among so many multiprocessors that each of them has the same number of
// tiles.
int rows_of_tile(int64_t n, int most, int multiprocessors) {
  const int64_t tiles = ceil_div<int64_t>(n, most * multiprocessors) * multiprocessors;
  return static_cast<int>(ceil_div<int64_t>(ceil_div(n, tiles), 8) * 8);
}

// What of the weight a tile has: `rows` of its rows, in whole eights; of a gate and up side by side so many of either, in halves of the
// tile. What is multiplied in place of more is stored nowhere.
template <class Shape, bool paired>
struct TileRows {
  static constexpr int kHalf = Shape::kRows / 2;
  CUtensorMap map;  // [n, k]: boxes of 128 bytes by `rows` rows
  int rows, width;  // width: n, or where up begins: columns of out

  __device__ int bytes() const { return (paired ? 2 : 1) * rows * kDepthBytes; }
  __device__ void copy(int row_tile, int part, uint32_t to, uint32_t barrier) const {
    copy_box(to, map, barrier, part * (kDepthBytes / 2), row_tile * rows, 0, 0, 0);
    if constexpr (paired)
      copy_box(to + kHalf * kDepthBytes, map, barrier, part * (kDepthBytes / 2), width + row_tile * rows, 0,
               0, 0);
  }
  // Of the weight, from one of the tile.
  __device__ int row(int row_tile, int in_tile) const {
    const int up = paired && in_tile >= kHalf;
    return row_tile * rows + in_tile + up * (width - kHalf);
  }
  __device__ int end(int row_tile) const { return min(width, (row_tile + 1) * rows); }
};

// Of a gate and up side by side: the warpgroup that has up gives its outputs to the other one, which makes of both what is written.
// Whether this is the other one.
template <class T, int count>
__device__ bool gate_times_up(float (&y)[count], float* shared) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const bool gate = threadIdx.x / kWarpgroup == 1;
  if (!gate)
#pragma unroll
    for (int i = 0; i < count; ++i) shared[i * kWarpgroup + thread] = y[i];
  sync_some(1, 2 * kWarpgroup);
  if (gate)
#pragma unroll
    for (int i = 0; i < count; ++i)
      y[i] = to_float(silu_and_mul_of<T>(y[i], shared[i * kWarpgroup + thread]));
  sync_some(1, 2 * kWarpgroup);  // the next tile's may come
  return gate;
}

struct CodesCall {
  const QuantizedMatmulArgs& args;
  const RowCodes& x;
  Epilogue epilogue = Epilogue::store;
};

}  // namespace

// >>> task 8.4.cuda.codes: codes of 8 bits on both sides, multiplied by the tensor cores
namespace {

// E4M3: the tensor cores add with some 14 bits, so every 128 columns, a stage, their sums are added to floats: as exact as a
// product in bf16. Integers are exact as they are.
template <class T, class OfSum, class Shape, bool paired>
struct CodeRows {
  static constexpr int kBytes = Shape::kRows * kDepthBytes;
  static constexpr bool kAddsInFloat = std::is_same_v<OfSum, float>;
  using Sum = OfSum;
  using Operand = NoOperand;

  Tokens tokens;
  TileRows<Shape, paired> weight;
  const float *x_scales, *weight_scales;
  const T* bias;  // nullptr: none

  __device__ int bytes() const { return weight.bytes(); }
  __device__ void copy(int row_tile, int part, uint32_t to, uint32_t barrier) const {
    weight.copy(row_tile, part, to, barrier);
  }
  __device__ static Operand load(uint32_t, int) { return {}; }
  __device__ static void multiply(Sum (&d)[Shape::kSums], Operand, uint32_t rows, int group, uint32_t x,
                                  bool add) {
    const uint64_t a = wgmma_tile(rows + group * 64 * kDepthBytes), b = wgmma_tile(x);
#pragma unroll
    for (int step = 0; step < kDepthBytes / 32; ++step)
      wgmma_codes(d, a + step * 2, b + step * 2, add || step > 0);
  }
};

// wgmma_8bit (sm_90a): codes of x [m, k] and of the weight [n, k], k in multiples of 16; out in T or f32. `split`: two blocks
// share out the columns of each tile, where there are so few that half of the multiprocessors would have none. `paired`:
// silu_and_mul.
template <class T, class Sum, class Shape, bool split, bool paired>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kTakesRegisters ? 1 : 2)
    codes_wgmma_kernel(const __grid_constant__ CodeRows<T, Sum, Shape, paired> p) {
  __shared__ uint64_t barrier;
  float* const shared = behind_ring<float>(Stages<CodeRows<T, Sum, Shape, paired>, Shape>::kSharedBytes);
  const SumsOfPartner<Shape> partner{shared, shared_address(&barrier)};
  if constexpr (split) partner.set_up();
  multiply_tiles<Shape>(p, [&](int row_tile, int token_tile, auto& d) {
    if constexpr (split)
      if (!partner.gather(d)) return;
    const int thread = static_cast<int>(threadIdx.x) - kWarpgroup, lane = thread % kWarp;
    const int first_token = token_tile * p.tokens.box;
#pragma unroll
    for (int group = 0; group < Shape::kRowGroups; ++group) {
      const int row = p.weight.row(row_tile, (thread / kWarpgroup * Shape::kRowGroups + group) * 64 +
                                                 thread % kWarpgroup / kWarp * 16);
      float scale[2] = {}, bias[2] = {};
      for (int lower = 0; lower < 2; ++lower)
        if (const int j = row + lane / 4 + 8 * lower; j < p.tokens.n) {
          scale[lower] = p.weight_scales[j];
          if (p.bias != nullptr) bias[lower] = to_float(p.bias[j]);
        }
      float y[Shape::kSums];
#pragma unroll
      for (int i = 0; i < Shape::kSums; ++i) {
        const int token = first_token + i / 4 * 8 + lane % 4 * 2 + i % 2, lower = i % 4 / 2;
        const float x_scale = p.x_scales[min(token, p.tokens.m - 1)];
        if constexpr (std::is_same_v<Sum, float>)
          y[i] = fmaf(d[group][i] * scale[lower], x_scale, bias[lower]);
        else
          y[i] = scaled_sum<float>(d[group][i], scale[lower], x_scale, bias[lower]);
      }
      if constexpr (paired)
        if (!gate_times_up<T>(y, shared)) return;
      store_transposed<T>(p.tokens, row, p.weight.end(row_tile), first_token, y);
    }
  });
}

template <class T, class Sum, class Shape, bool split, bool paired>
void launch(const OpContext& ctx, const CodesCall& call) {
  const QuantizedMatmulArgs& args = call.args;
  const QuantizedWeight& weight = *args.weight;
  const int64_t m = args.x.dim(0), n = weight.n, width = paired ? n / 2 : n;
  // Two codes are an element of 16 bits to the copy engine.
  const auto rows_of = [](const Tensor& codes, int64_t rows, int64_t stride, int box) {
    return tensor_map({.data = codes.raw(),
                       .dtype = DType::f16,
                       .sizes = {codes.dim(1) / 2, rows, 1, 1, 1},
                       .strides = {stride / 2, stride / 2 * rows, stride / 2 * rows, stride / 2 * rows},
                       .box = {64, box, 1, 1, 1}});
  };
  using Rows = CodeRows<T, Sum, Shape, paired>;
  constexpr int kMostRows = Shape::kRows / (paired ? 2 : 1);
  Rows p{};
  const int blocks = ctx.cuda->num_multiprocessors() / (split ? 2 : 1);  // or pairs
  p.weight.width = static_cast<int>(width);
  p.weight.rows = m <= kFewRows ? rows_of_tile(width, kMostRows, blocks) : kMostRows;
  p.weight.map = rows_of(weight.codes, n, n > 1 ? weight.codes.stride(0) : weight.k, p.weight.rows);
  p.tokens.box = tokens_of_tile(m, Shape::kTokens);
  p.tokens.x = rows_of(call.x.codes, m, weight.k, p.tokens.box);
  p.tokens.items = {.row_tiles = static_cast<int>(ceil_div<int64_t>(width, p.weight.rows)),
                    .token_tiles = static_cast<int>(ceil_div<int64_t>(m, p.tokens.box))};
  p.tokens.parts = static_cast<int>(ceil_div<int64_t>(weight.k, kDepthBytes));
  p.tokens.m = static_cast<int>(m);
  p.tokens.n = static_cast<int>(n);
  p.tokens.out = args.out.raw();
  p.tokens.out_stride = args.out.stride(0);
  p.tokens.float_out = args.out.dtype() == DType::f32;
  p.tokens.in_packs = !p.tokens.float_out && is_packed(args.out);
  p.tokens.adds = call.epilogue == Epilogue::add;
  p.x_scales = cuda_data<float>(call.x.scales);
  p.weight_scales = cuda_data<float>(weight.scales);
  p.bias = cuda_data<T>(args.bias);
  auto kernel = codes_wgmma_kernel<T, Sum, Shape, split, paired>;
  constexpr int kSharedBytes = Stages<Rows, Shape>::kSharedBytes +
                               (split ? SumsOfPartner<Shape>::kBytes : 0) +
                               (paired ? Shape::kSums * kWarpgroup * static_cast<int>(sizeof(float)) : 0);
  ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), kSharedBytes);
  if constexpr (split) {
    p.tokens.split = 2;
    launch_in_clusters(ctx, kernel, 2, 2 * p.tokens.items.count(), Shape::kThreads, kSharedBytes, p);
  } else {
    launch_kernel(ctx, kernel, static_cast<unsigned>(std::min(blocks, p.tokens.items.count())),
                  Shape::kThreads, kSharedBytes, p);
  }
}

}  // namespace

// <<< task 8.4.cuda.codes

namespace {

// Tiles of as few tokens as there are, or little more: those that are not there cost instructions. Of the weight, large tiles where a
// block has several, as x is read again for each; and pairs of blocks for a tile where there are fewer than half as many as
// multiprocessors.
template <class T, class Sum, int tokens>
void launch_tiles(const OpContext& ctx, const CodesCall& call) {
  using Small = TileShape<1, 1, tokens>;
  using Large = TileShape<2, 1, tokens>;
  const QuantizedWeight& weight = *call.args.weight;
  const int64_t tiles = ceil_div<int64_t>(weight.n, Small::kRows);
  const int multiprocessors = ctx.cuda->num_multiprocessors();
  if (call.epilogue == Epilogue::silu_and_mul)
    launch<T, Sum, Large, false, true>(ctx, call);
  else if (2 * tiles <= multiprocessors && weight.k > kDepthBytes)
    launch<T, Sum, Small, true, false>(ctx, call);
  else if (tiles <= multiprocessors)
    launch<T, Sum, Small, false, false>(ctx, call);
  else
    launch<T, Sum, Large, false, false>(ctx, call);
}

template <class T, class Sum>
void launch_for_few_rows(const OpContext& ctx, const CodesCall& call) {
  const int64_t m = call.args.x.dim(0);
  if (m <= 16)
    launch_tiles<T, Sum, 16>(ctx, call);
  else if (m <= 32)
    launch_tiles<T, Sum, 32>(ctx, call);
  else
    launch_tiles<T, Sum, kFewRows>(ctx, call);
}

// Tiles as large as leave no multiprocessor without one, of a weight of 8192 rows.
template <class T>
void launch_for_rows(const OpContext& ctx, const CodesCall& call) {
  const int64_t m = call.args.x.dim(0);
  if (call.args.activations->is_float) {
    launch_for_few_rows<T, float>(ctx, call);
  } else if (m <= kFewRows) {
    launch_for_few_rows<T, int32_t>(ctx, call);
  } else if (m <= 256) {
    launch<T, int32_t, TileShape<2, 1, 128>, false, false>(ctx, call);
  } else {
    launch<T, int32_t, TileShape<2, 1, 256>, false, false>(ctx, call);
  }
}

}  // namespace

bool quantized_matmul_takes_wgmma_8bit(const QuantizedMatmulArgs& args) {
  return takes_eight_bit_codes(*args.weight, args.activations, args.x) &&
         (!args.activations->is_float || args.x.dim(0) <= kFewRows);
}

int64_t quantized_matmul_wgmma_8bit_workspace(const QuantizedMatmulArgs& args) {
  return args.x.dim(0) * (args.weight->k + 4);
}

void wgmma_8bit_of_codes(const OpContext& ctx, const QuantizedMatmulArgs& args, const RowCodes& x,
                         Epilogue epilogue) {
  LADDER_CHECK(epilogue == Epilogue::store || args.x.dim(0) <= kMaxRowsOfCodes,
               "{} rows of codes whose product goes on: expected at most {}", args.x.dim(0), kMaxRowsOfCodes);
  if (args.x.dtype() == DType::f16)
    launch_for_rows<__half>(ctx, {args, x, epilogue});
  else
    launch_for_rows<__nv_bfloat16>(ctx, {args, x, epilogue});
}

void quantized_matmul_wgmma_8bit(const OpContext& ctx, const QuantizedMatmulArgs& args) {
  std::optional<Arena> own;  // for callers that bring no scratch memory
  Arena& arena = ctx.arena != nullptr ? *ctx.arena : own.emplace(ctx.device);
  ArenaScope scope(arena);
  wgmma_8bit_of_codes(ctx, args, quantized_rows(ctx, arena, args.x, *args.activations, args.input_scale));
}

}  // namespace ladder

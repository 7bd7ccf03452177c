// The rung for many rows of rounded activations on a GPU: codes of 8 bits on both sides, multiplied by wgmma as they are (sm_90a).
#include <algorithm>
#include <optional>
#include <type_traits>

#include "step1_layers/core/packed.h"
#include "step1_layers/core/tensor_map_cuda.h"
#include "step8_advanced/quantization/kernels/eight_bit_codes.h"
#include "step8_advanced/quantization/kernels/eight_bit_rows_cuda.h"
#include "step8_advanced/quantization/kernels/quantized_matmul_cuda.h"
#include "step8_advanced/quantization/kernels/scaled_sum.cuh"
#include "step8_advanced/quantization/kernels/tile_products.cuh"
#include "step8_advanced/quantization/kernels/wgmma_shapes.cuh"

namespace ladder {

namespace {

using namespace tile_products;

// Up to so many rows of x the time is that of reading the weight: small tiles, so that every multiprocessor reads.
constexpr int kFewRows = 64;

}  // namespace

// >>> task 8.4.cuda.codes: codes of 8 bits on both sides, multiplied by the tensor cores
namespace {

// E4M3: the tensor cores add with some 14 bits, so every 128 columns, a stage, their sums are added to floats: as exact as a
// product in bf16. Integers are exact as they are.
template <class T, class OfSum, class Shape>
struct CodeRows {
  static constexpr int kBytes = Shape::kRows * kDepthBytes;
  static constexpr bool kAddsInFloat = std::is_same_v<OfSum, float>;
  using Sum = OfSum;
  using Operand = NoOperand;

  Tokens tokens;
  CUtensorMap weight;  // [n, k]: boxes of 128 bytes by kRows rows
  const float *x_scales, *weight_scales;
  const T* bias;  // nullptr: none

  __device__ void copy(int row_tile, int part, uint32_t to, uint32_t barrier) const {
    copy_box(to, weight, barrier, part * (kDepthBytes / 2), row_tile * Shape::kRows, 0, 0, 0);
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

// wgmma_8bit (sm_90a): codes of x [m, k] and of the weight [n, k], k and n in multiples of 16; out [m, n] in T or f32.
template <class T, class Sum, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    codes_wgmma_kernel(const __grid_constant__ CodeRows<T, Sum, Shape> p) {
  multiply_tiles<Shape>(p, [&](int row_tile, int token_tile, const auto& d) {
    const int thread = static_cast<int>(threadIdx.x) - kWarpgroup, lane = thread % kWarp;
#pragma unroll
    for (int group = 0; group < Shape::kRowGroups; ++group) {
      const int row = row_tile * Shape::kRows + (thread / kWarpgroup * Shape::kRowGroups + group) * 64 +
                      thread % kWarpgroup / kWarp * 16;
      float scale[2] = {}, bias[2] = {};
      for (int lower = 0; lower < 2; ++lower)
        if (const int j = row + lane / 4 + 8 * lower; j < p.tokens.n) {
          scale[lower] = p.weight_scales[j];
          if (p.bias != nullptr) bias[lower] = to_float(p.bias[j]);
        }
      store_transposed<T>(p.tokens, row, token_tile * p.tokens.box, d[group],
                          [&](auto sum, bool lower, int token) {
                            const float x_scale = p.x_scales[min(token, p.tokens.m - 1)];
                            if constexpr (std::is_same_v<Sum, float>)
                              return fmaf(sum * scale[lower], x_scale, bias[lower]);
                            else
                              return scaled_sum<float>(sum, scale[lower], x_scale, bias[lower]);
                          });
    }
  });
}

struct CodesCall {
  const QuantizedMatmulArgs& args;
  Tensor codes, scales;  // of x
};

template <class T, class Sum, class Shape>
void launch(const OpContext& ctx, const CodesCall& call) {
  const QuantizedMatmulArgs& args = call.args;
  const QuantizedWeight& weight = *args.weight;
  const int64_t m = args.x.dim(0), n = weight.n;
  // Two codes are an element of 16 bits to the copy engine.
  const auto rows_of = [](const Tensor& codes, int64_t rows, int64_t stride, int box) {
    return tensor_map({.data = codes.raw(),
                       .dtype = DType::f16,
                       .sizes = {codes.dim(1) / 2, rows, 1, 1, 1},
                       .strides = {stride / 2, stride / 2 * rows, stride / 2 * rows, stride / 2 * rows},
                       .box = {64, box, 1, 1, 1}});
  };
  CodeRows<T, Sum, Shape> p{};
  p.tokens.box = tokens_of_tile(m, Shape::kTokens);
  p.tokens.x = rows_of(call.codes, m, weight.k, p.tokens.box);
  p.weight = rows_of(weight.codes, n, n > 1 ? weight.codes.stride(0) : weight.k, Shape::kRows);
  p.tokens.items = {.row_tiles = static_cast<int>(ceil_div<int64_t>(n, Shape::kRows)),
                    .token_tiles = static_cast<int>(ceil_div<int64_t>(m, p.tokens.box))};
  p.tokens.parts = static_cast<int>(ceil_div<int64_t>(weight.k, kDepthBytes));
  p.tokens.m = static_cast<int>(m);
  p.tokens.n = static_cast<int>(n);
  p.tokens.out = args.out.raw();
  p.tokens.out_stride = args.out.stride(0);
  p.tokens.float_out = args.out.dtype() == DType::f32;
  p.tokens.in_packs = !p.tokens.float_out && is_packed(args.out);
  p.x_scales = cuda_data<float>(call.scales);
  p.weight_scales = cuda_data<float>(weight.scales);
  p.bias = cuda_data<T>(args.bias);
  auto kernel = codes_wgmma_kernel<T, Sum, Shape>;
  constexpr int kSharedBytes = Stages<CodeRows<T, Sum, Shape>, Shape>::kSharedBytes;
  ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), kSharedBytes);
  const int blocks = std::min(ctx.cuda->num_multiprocessors(), p.tokens.items.count());
  launch_kernel(ctx, kernel, static_cast<unsigned>(blocks), Shape::kThreads, kSharedBytes, p);
}

}  // namespace

// <<< task 8.4.cuda.codes

namespace {

// Tiles of as few tokens as there are, or little more: those that are not there cost instructions.
template <class T, class Sum>
void launch_for_few_rows(const OpContext& ctx, const CodesCall& call) {
  const int64_t m = call.args.x.dim(0);
  if (m <= 16)
    launch<T, Sum, TileShape<1, 1, 16>>(ctx, call);
  else if (m <= 32)
    launch<T, Sum, TileShape<1, 1, 32>>(ctx, call);
  else
    launch<T, Sum, TileShape<1, 1, kFewRows>>(ctx, call);
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
    launch<T, int32_t, TileShape<2, 1, 128>>(ctx, call);
  } else {
    launch<T, int32_t, TileShape<2, 1, 256>>(ctx, call);
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

void quantized_matmul_wgmma_8bit(const OpContext& ctx, const QuantizedMatmulArgs& args) {
  std::optional<Arena> own;  // for callers that bring no scratch memory
  Arena& arena = ctx.arena != nullptr ? *ctx.arena : own.emplace(ctx.device);
  ArenaScope scope(arena);
  const int64_t m = args.x.dim(0);
  const CodesCall call{args, arena.take({m, args.weight->k}, DType::u8), arena.take({m}, DType::f32)};
  quantize_rows_cuda(ctx, args.x, *args.activations, args.input_scale, call.codes, call.scales);
  if (args.x.dtype() == DType::f16)
    launch_for_rows<__half>(ctx, call);
  else
    launch_for_rows<__nv_bfloat16>(ctx, call);
}

}  // namespace ladder

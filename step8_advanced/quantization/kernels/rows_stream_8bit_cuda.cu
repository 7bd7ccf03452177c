// The rung for few rows of rounded activations on a GPU, and the fused product: the weight's codes as they lie, row after row, so that
// the product for many rows (cublaslt_8bit_cuda.cpp) reads the same memory.
#include <algorithm>
#include <optional>

#include "step1_layers/core/packed.h"
#include "step1_layers/linear/fused_epilogue.cuh"
#include "step8_advanced/quantization/kernels/eight_bit_codes.h"
#include "step8_advanced/quantization/kernels/eight_bit_rows_cuda.h"
#include "step8_advanced/quantization/kernels/pending_copies.cuh"
#include "step8_advanced/quantization/kernels/quantized_matmul_cuda.h"
#include "step8_advanced/quantization/kernels/rows_stream_8bit.cuh"
#include "step8_advanced/quantization/kernels/scaled_sum.cuh"

namespace ladder {

namespace eight_bit {
namespace {

// What makes a column's sums numbers.
template <class T>
struct ColumnScale {
  float scale = 0, bias = 0;

  __device__ ColumnScale(const Product<T>& p, int row, bool exists) {
    if (!exists) return;
    scale = p.weight_scales[row];
    if (p.bias != nullptr) bias = to_float(p.bias[row]);
  }
};

// rows_stream_8bit: x [m, k], up to 8 rows, in codes, or (`rounds`) one row to be rounded here; codes of weight [n, k], k in
// multiples of 16 and rows at multiples of 16 bytes; a scale for a row of either; out [m, n] in T or f32. silu_and_mul needs whole
// tiles in either half of the weight. A block per multiprocessor has an even share of the weight's units of 16 or 2 * 16 rows and goes
// through them group by group; its eight warps share the columns. The simple version:
//
//   x = codes of x, or of norm(x), in shared memory             if it is rounded here
//   for each group of units of this block:
//     for each 64 columns of this warp:
//       for each tile:  sums += codes of x * codes of the weight      mma
//     add the warps' sums, times both scales, and write them as the epilogue says
//
// What makes it fast: no code is moved to where an mma wants it. The order of a sum over k is free, so a lane's 16 bytes of a row,
// of x as of the weight, are the operands of two mma as they lie in memory; and codes on both sides need no number made of them
// before the sum is complete. A part of the ring is asked for before the previous kernel has ended. Of a row that is rounded here the
// rest comes while that is done: loads of x would stand behind those of a whole ring, and memory rest afterwards.
template <class T, class Sum, int packs>
__global__ void __launch_bounds__(kThreads, 2) rows_stream_8bit(const __grid_constant__ Product<T> p) {
  constexpr bool rounds = packs > 0;
  using Sums = WarpSums<Sum>;
  extern __shared__ __align__(128) unsigned char shared[];
  allow_next_kernel();
  const Groups groups(p);
  CodeRing<T, rounds> ring(p, groups, shared);
  ring.fill_weight(p.early);

  float scale_of_row = 0;
  if constexpr (rounds) {
    RowRounding<T, std::is_same_v<Sum, float>, packs> rounding(p);
    wait_for_previous_kernel();
    rounding.load(p);
    ring.fill_weight(p.slots - p.early);
    scale_of_row = rounding.store(p, shared);
  } else {
    wait_for_previous_kernel();
    ring.fill_x();
  }
  // A thread writes one column of a group, of every fourth row; of silu_and_mul those of gate tiles do.
  constexpr int kRowsAtOnce = kThreads / Sums::kColumns, kRounds = ceil_div(kRows, kRowsAtOnce);
  const int column = threadIdx.x % Sums::kColumns, first_row = threadIdx.x / Sums::kColumns;
  const int unit = column / kTileRows / p.unit_tiles(), tile = column / kTileRows % p.unit_tiles();

  float x_scales[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; ++i)
    x_scales[i] = rounds ? scale_of_row : p.x_scales[min(first_row + i * kRowsAtOnce, p.m - 1)];
  Sum* const sums = reinterpret_cast<Sum*>(shared + p.sums_at);
  int slot = 0;
#pragma unroll 1
  for (int group = 0; group < groups.count; ++group) {
    const int units = groups.units(group), tiles = units * p.unit_tiles();
    const int j = (groups.first_unit(group) + unit) * kTileRows + column % kTileRows;
    const bool writes = unit < units && tile == 0 && j < p.width();
    const ColumnScale<T> scale(p, j, writes), up_scale(p, p.width() + j, writes && p.paired());
    T residual[kRounds];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int row = first_row + i * kRowsAtOnce;
      residual[i] = writes && p.epilogue == Epilogue::add && row < p.m
                        ? static_cast<const T*>(p.out)[row * p.out_stride + j]
                        : from_float<T>(0.0f);
    }
    Sums product;
#pragma unroll 1
    for (int at = ring.first; at / kChunk * kChunk < p.k; at += kWarps * kChunk) {
      wait_some_copies<0, kMaxSlots - 1>(p.slots - 1);
      const uint4 x = !rounds    ? ring.x(slot)
                      : at < p.k ? *reinterpret_cast<const uint4*>(shared + at)
                                 : uint4{0, 0, 0, 0};
      product.multiply(ring.to + slot * p.slot_bytes, tiles, x);
      ring.copy_next();
      slot = slot + 1 < p.slots ? slot + 1 : 0;
    }
    __syncthreads();  // the sums before have been read, and the ring, if they take its place
    product.store(sums, p.m);
    __syncthreads();
    if (!writes) continue;
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int row = first_row + i * kRowsAtOnce;
      if (row >= p.m) break;
      const Sum sum = Sums::total(sums, p.m, row, column);
      const int64_t to = row * p.out_stride + j;
      T* out = static_cast<T*>(p.out) + to;
      if (p.epilogue == Epilogue::silu_and_mul) {
        const Sum up = Sums::total(sums, p.m, row, column + kTileRows);
        *out = silu_and_mul_of<T>(scaled_sum<float>(sum, scale.scale, x_scales[i], scale.bias),
                                  scaled_sum<float>(up, up_scale.scale, x_scales[i], up_scale.bias));
      } else if (p.epilogue == Epilogue::add) {
        *out = sum_with_residual(residual[i], scaled_sum<float>(sum, scale.scale, x_scales[i], scale.bias));
      } else if (p.float_out) {
        static_cast<float*>(p.out)[to] = scaled_sum<float>(sum, scale.scale, x_scales[i], scale.bias);
      } else {
        *out = scaled_sum<T>(sum, scale.scale, x_scales[i], scale.bias);
      }
    }
  }
}

// Of a block, bytes: more than half of what a multiprocessor has, so that two do not crowd where the kernel before leaves room
// (rows_stream_launch.cuh), and little enough for blocks of attention beside it. kEarly: what is asked for of a ring before a row that
// is rounded here.
constexpr int kAlone = 148 << 10, kEarly = 32 << 10;

int round_up(int bytes) {
  return ceil_div(bytes, 128) * 128;
}

template <class T, class Sum, int packs>
void launch(const OpContext& ctx, Product<T> p) {
  constexpr bool rounds = packs > 0;
  const int all_units = ceil_div(p.width(), kTileRows);
  const int blocks = std::min(ctx.cuda->num_multiprocessors(), all_units);
  p.units = all_units / blocks;
  p.one_more = all_units % blocks;
  p.odd_tile = (p.paired() ? p.width() : kTileRows) * p.weight_stride;
  p.two_tiles = (p.paired() ? kTileRows : 2 * kTileRows) * p.weight_stride;
  p.half_tile = kTileRows / 2 * p.weight_stride;
  const int of_group = kTiles / p.unit_tiles();
  const auto largest_group = [&](int units) { return ceil_div(units, ceil_div(units, of_group)); };
  const int most_units = p.units + (p.one_more > 0), groups = ceil_div(most_units, of_group);
  const int tiles = std::max(largest_group(p.units), largest_group(most_units)) * p.unit_tiles();
  p.x_at = (tiles + tiles % 2) * kTileBytes;  // a pair's second tile may be nobody's, but is read
  p.slot_bytes = rounds ? tiles * kTileBytes : p.x_at + kThreads * 16;
  const int behind = rounds ? tiles % 2 * kTileBytes : 0;  // where the last slot's last pair is read to
  const int sums_bytes = WarpSums<Sum>::bytes(p.m);
  p.sums_at = rounds ? round_up(p.k) : 0;
  p.ring_at = p.sums_at + (groups == 1 ? 0 : round_up(sums_bytes));
  p.slots = std::clamp((kAlone - behind - p.ring_at) / p.slot_bytes, 1,
                       std::min(groups * ceil_div(p.k, kWarps * kChunk), kMaxSlots));
  p.early = rounds ? std::min(p.slots, ceil_div(kEarly, p.slot_bytes)) : p.slots;
  const int bytes = std::max({p.ring_at + p.slots * p.slot_bytes + behind, p.sums_at + sums_bytes, kAlone});
  auto kernel = rows_stream_8bit<T, Sum, packs>;
  ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), bytes);
  launch_kernel(ctx, kernel, static_cast<unsigned>(blocks), kThreads, static_cast<size_t>(bytes), p);
}

template <class T>
Product<T> product_of(const QuantizedRowsStreamArgs& args) {
  const QuantizedWeight& weight = *args.weight;
  Product<T> p{};
  p.x = cuda_data<T>(args.x);
  p.norm_weight = cuda_data<T>(args.norm_weight);
  p.eps = static_cast<float>(args.eps);
  p.rounding = rounding_of(args.activations, args.input_scale);
  p.weight = cuda_data<uint8_t>(weight.codes);
  p.weight_scales = cuda_data<float>(weight.scales);
  p.bias = cuda_data<T>(args.bias);
  p.out = args.out.raw();
  p.float_out = args.out.dtype() == DType::f32;
  p.epilogue = args.epilogue;
  p.m = static_cast<int>(args.x.dim(0));
  p.n = static_cast<int>(weight.n);
  p.k = static_cast<int>(weight.k);
  p.weight_stride = weight.codes.stride(0);
  p.out_stride = args.out.stride(0);
  return p;
}

// So many elements has a row that a block's threads have so many packs of each.
template <class T>
constexpr int packs_of_block(int of_thread) {
  return of_thread * kThreads * Pack<T>::kSize;
}

template <class T, class Sum>
void launch_for_rows(const OpContext& ctx, Product<T> p, const RowCodes* x) {
  static_assert(packs_of_block<T>(8) == kMaxRoundedByBlocks);
  if (x != nullptr) {
    p.x_codes = cuda_data<uint8_t>(x->codes);
    p.x_scales = cuda_data<float>(x->scales);
    launch<T, Sum, 0>(ctx, p);
  } else if (p.k <= packs_of_block<T>(4)) {
    launch<T, Sum, 4>(ctx, p);
  } else {
    launch<T, Sum, 8>(ctx, p);
  }
}

template <class T>
void launch_product(const OpContext& ctx, const QuantizedRowsStreamArgs& args, const RowCodes* x) {
  if (args.activations->is_float)
    launch_for_rows<T, float>(ctx, product_of<T>(args), x);
  else
    launch_for_rows<T, int32_t>(ctx, product_of<T>(args), x);
}

// x: nullptr: its only row is rounded by the blocks.
void run(const OpContext& ctx, const QuantizedRowsStreamArgs& args, const RowCodes* x) {
  if (args.x.dtype() == DType::f16)
    launch_product<__half>(ctx, args, x);
  else
    launch_product<__nv_bfloat16>(ctx, args, x);
}

}  // namespace
}  // namespace eight_bit

void rows_stream_8bit(const OpContext& ctx, const QuantizedRowsStreamArgs& args) {
  if (rounded_by_blocks(args.x, *args.weight)) return eight_bit::run(ctx, args, nullptr);
  std::optional<Arena> own;  // for callers that bring no scratch memory
  Arena& arena = ctx.arena != nullptr ? *ctx.arena : own.emplace(ctx.device);
  ArenaScope scope(arena);
  const RowCodes x =
      quantized_rows(ctx, arena, args.x, *args.activations, args.input_scale, {args.norm_weight, args.eps});
  eight_bit::run(ctx, args, &x);
}

bool quantized_matmul_takes_rows_stream_8bit(const QuantizedMatmulArgs& args) {
  return takes_eight_bit_codes(*args.weight, args.activations, args.x) && args.x.dim(0) <= kMaxRowsOfMma;
}

int64_t quantized_matmul_rows_stream_8bit_workspace(const QuantizedMatmulArgs& args) {
  return args.x.dim(0) * (args.weight->k + 4);
}

void rows_stream_8bit_of_codes(const OpContext& ctx, const QuantizedMatmulArgs& args, const RowCodes& x) {
  eight_bit::run(ctx, {{.x = args.x, .out = args.out}, args.weight, args.bias, args.activations}, &x);
}

void quantized_matmul_rows_stream_8bit(const OpContext& ctx, const QuantizedMatmulArgs& args) {
  rows_stream_8bit(
      ctx, {{.x = args.x, .out = args.out}, args.weight, args.bias, args.activations, args.input_scale});
}

}  // namespace ladder

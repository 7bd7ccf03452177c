// The rung for many rows of x and a weight of 4 bits in records: codes become numbers in registers, tile by tile (sm_90a).
#include <algorithm>
#include <array>
#include <optional>

#include "step1_layers/core/packed.h"
#include "step1_layers/core/tensor_map_cuda.h"
#include "step8_advanced/quantization/kernels/cluster_launch.cuh"
#include "step8_advanced/quantization/kernels/experts_grouped_cuda.h"
#include "step8_advanced/quantization/kernels/prepare_x_cuda.h"
#include "step8_advanced/quantization/kernels/quantized_matmul_cuda.h"
#include "step8_advanced/quantization/kernels/round_activations.h"
#include "step8_advanced/quantization/kernels/rows_stream.cuh"
#include "step8_advanced/quantization/kernels/sums_of_partner.cuh"
#include "step8_advanced/quantization/kernels/tile_products.cuh"
#include "step8_advanced/quantization/kernels/weight_records.h"
#include "step8_advanced/quantization/kernels/wgmma_shapes.cuh"

namespace ladder {

namespace {

using namespace tile_products;

// Writing out takes the same for any number of rows, so of many the library's product is the faster one: of those of a small weight
// sooner, as its tiles fill the multiprocessors less evenly.
constexpr int64_t kMostRows = 2048, kMostRowsOfSmall = 384, kSmall = int64_t{48} << 20;  // kSmall: elements

constexpr int kTileRows = static_cast<int>(kRecordRows), kPartColumns = kDepthBytes / 2;
constexpr int kHalfCodes = kWarp * 16;  // bytes of half a record's codes

// What a lane multiplies of a part: four steps of 16 columns.
struct StepOperands {
  uint32_t step[4][4];
};
template <int count>
__device__ void keep_in_place(StepOperands (&operands)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) ladder::keep_in_place(operands[i].step[j]);
}

// Numbers (NibbleNumbers) of a row become weights in units of its scales, two at a time: a code less its zero point is exact in either
// type, and its product with the scale is rounded to T, as that of a weight which is written out.
template <class T>
struct RowScale;

// A scale, which is an f16, is the sum of two of bf16; what the lower one adds is a bit of the product's last place at most.
template <>
struct RowScale<__nv_bfloat16> {
  static constexpr float kUnit = 1;  // of weights
  __nv_bfloat162 offset, high, low;

  __device__ RowScale(float scale, float zero) {
    offset = __float2bfloat162_rn(-(records::NibbleNumbers<__nv_bfloat16>::kOffset + zero));
    high = __float2bfloat162_rn(scale);
    low = __float2bfloat162_rn(scale - __low2float(high));
  }
  __device__ uint32_t weights(uint32_t numbers) const {
    const __nv_bfloat162 codes = __hadd2(*reinterpret_cast<const __nv_bfloat162*>(&numbers), offset);
    const __nv_bfloat162 both = __hfma2(codes, high, __hmul2(codes, low));
    return *reinterpret_cast<const uint32_t*>(&both);
  }
};

// The largest scale is little below what f16 ends with: sixteenths of codes.
template <>
struct RowScale<__half> {
  static constexpr float kUnit = 16;
  __half2 offset, scale;

  __device__ RowScale(float of_row, float zero) {
    offset = __float2half2_rn(-(records::NibbleNumbers<__half>::kOffset + zero) / kUnit);
    scale = __float2half2_rn(of_row);
  }
  __device__ uint32_t weights(uint32_t numbers) const {
    const __half2 codes =
        __hfma2(*reinterpret_cast<const __half2*>(&numbers), __float2half2_rn(1 / kUnit), offset);
    const __half2 both = __hmul2(codes, scale);
    return *reinterpret_cast<const uint32_t*>(&both);
  }
};

// A stage has half a record of each 16 rows: the codes of all, then the scales of the records' one group.
template <class T, class Shape, bool zeros>
struct RecordRows {
  using Rows = records::RowPair<WeightCodes::int4, zeros>;
  static constexpr int kTiles = Shape::kRows / kTileRows, kScales = 8 * Rows::kBytes;
  static constexpr int kRecordBytes = 2 * kHalfCodes + kScales;
  static constexpr int kBytes = kTiles * (kHalfCodes + kScales);
  static constexpr bool kAddsInFloat = false;
  using Sum = float;
  using Operand = StepOperands;

  Tokens tokens;
  CUtensorMap codes, scales;  // of records [tiles, blocks of k, kRecordBytes]: boxes of a stage
  float unit;
  const T* bias;

  __device__ static int bytes() { return kBytes; }
  __device__ void copy(int row_tile, int part, uint32_t to, uint32_t barrier) const {
    // In elements of 16 bits.
    const int record = part / 2 * (kRecordBytes / 2), tile = row_tile * kTiles;
    copy_box(to, codes, barrier, record + part % 2 * (kHalfCodes / 2), tile, 0, 0, 0);
    copy_box(to + kTiles * kHalfCodes, scales, barrier, record + kHalfCodes, tile, 0, 0, 0);
  }
  __device__ static Operand load(uint32_t rows, int group) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp,
              tile = group * 4 + static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
    const uint4 vector = load_shared(rows + tile * kHalfCodes + lane * 16);
    const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
    const Rows of_rows(rows + kTiles * kHalfCodes + tile * kScales + lane / 4 * Rows::kBytes);
    float zero[2] = {8, 8};
    if constexpr (zeros) zero[0] = of_rows.zero[0], zero[1] = of_rows.zero[1];
    const RowScale<T> row(of_rows.scale[0], zero[0]), lower(of_rows.scale[1], zero[1]);
    Operand operand;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t numbers[4];
      records::NibbleNumbers<T>::numbers(words[j], numbers);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        operand.step[j][i] = i % 2 == 0 ? row.weights(numbers[i]) : lower.weights(numbers[i]);
    }
    return operand;
  }
  __device__ static void multiply(Sum (&d)[Shape::kSums], const Operand& operand, uint32_t, int, uint32_t x,
                                  bool add) {
    const uint64_t b = wgmma_tile(x);
#pragma unroll
    for (int j = 0; j < 4; ++j) wgmma_of_registers<T>(d, operand.step[j], b + j * 2, add || j > 0);
  }
};

// wgmma (sm_90a): x [m, k] with its columns in the order of records (permute_columns); a weight of int4 in groups of 128 or more, k in
// multiples of 64; out in T or f32. What is written out elsewhere, and read again, never leaves the registers here. While the tensor
// cores multiply a stage the next one's 64 columns become numbers: some 120 clocks of a warp's instructions, where 256 tokens
// take 1,024 of wgmma. The simple version:
//
//   for each tile of the weight's rows and of tokens:
//     for each 64 columns:
//       weights = (code - zero point) * scale, rounded to T         operand A, registers
//       sums += weights * x                                         wgmma, x in shared memory
//     out = sums * unit + bias
//
// Seen on the way (8192 x 8192, 1024 rows, an H200; cuBLASLt in bf16 takes 171 us, with the weight written out before 210):
// - one thread that asks for each 16 rows' codes and scales by copies of their own is what all wait for, a hundred clocks a copy: 230 us.
//   As boxes of a tensor, two for a stage: 196;
// - numbers as floats, times scales, rounded two at a time: five instructions for two weights. As numbers of T, three: 186.
// `split`: two blocks share out the columns of each tile.
template <class T, class Shape, bool zeros, bool split>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    records_wgmma_kernel(const __grid_constant__ RecordRows<T, Shape, zeros> p) {
  __shared__ uint64_t barrier;
  const SumsOfPartner<Shape> partner{
      behind_ring<float>(Stages<RecordRows<T, Shape, zeros>, Shape>::kSharedBytes), shared_address(&barrier)};
  if constexpr (split) partner.set_up();
  multiply_tiles<Shape>(p, [&](int row_tile, int token_tile, auto& d) {
    if constexpr (split)
      if (!partner.gather(d)) return;
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
      for (int i = 0; i < Shape::kSums; ++i) y[i] = fmaf(d[group][i], p.unit, bias[i % 4 / 2]);
      store_transposed<T>(p.tokens, row, p.tokens.n, token_tile * p.tokens.box, y);
    }
  });
}

template <class T, class Shape, bool zeros, bool split>
void launch(const OpContext& ctx, const QuantizedMatmulArgs& args, const Tensor& x) {
  const QuantizedWeight& weight = *args.weight;
  const int64_t m = x.dim(0), k = weight.k;
  RecordRows<T, Shape, zeros> p{};
  p.tokens.box = tokens_of_tile(m, Shape::kTokens);
  p.tokens.x = tensor_map({.data = x.raw(),
                           .dtype = x.dtype(),
                           .sizes = {k, m, 1, 1, 1},
                           .strides = {k, k * m, k * m, k * m},
                           .box = {kPartColumns, p.tokens.box, 1, 1, 1}});
  p.tokens.items = {.row_tiles = static_cast<int>(ceil_div<int64_t>(weight.n, Shape::kRows)),
                    .token_tiles = static_cast<int>(ceil_div<int64_t>(m, p.tokens.box))};
  p.tokens.parts = static_cast<int>(k / kPartColumns);
  p.tokens.m = static_cast<int>(m);
  p.tokens.n = static_cast<int>(weight.n);
  p.tokens.out = args.out.raw();
  p.tokens.out_stride = args.out.stride(0);
  p.tokens.float_out = args.out.dtype() == DType::f32;
  p.tokens.in_packs = !p.tokens.float_out && is_packed(args.out);
  using P = RecordRows<T, Shape, zeros>;
  const int64_t tiles = weight.records.bytes.dim(0),
                row = weight.records.bytes.dim(1) * P::kRecordBytes / 2;  // of tiles, in elements of 16 bits
  const auto boxes = [&](int bytes) {
    return tensor_map({.data = weight.records.bytes.raw(),
                       .dtype = DType::f16,
                       .sizes = {row, tiles, 1, 1, 1},
                       .strides = {row, row * tiles, row * tiles, row * tiles},
                       .box = {bytes / 2, P::kTiles, 1, 1, 1},
                       .swizzled = false});
  };
  p.codes = boxes(kHalfCodes);
  p.scales = boxes(P::kScales);
  p.unit = weight.records.unit * RowScale<T>::kUnit;
  p.bias = cuda_data<T>(args.bias);
  auto kernel = records_wgmma_kernel<T, Shape, zeros, split>;
  constexpr int kSharedBytes = Stages<P, Shape>::kSharedBytes + (split ? SumsOfPartner<Shape>::kBytes : 0);
  ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), kSharedBytes);
  if constexpr (split) {
    p.tokens.split = 2;
    launch_in_clusters(ctx, kernel, 2, 2 * p.tokens.items.count(), Shape::kThreads, kSharedBytes, p);
  } else {
    const int blocks = std::min(ctx.cuda->num_multiprocessors(), p.tokens.items.count());
    launch_kernel(ctx, kernel, static_cast<unsigned>(blocks), Shape::kThreads, kSharedBytes, p);
  }
}

// A shape of tiles, and what a product takes with it on an H200, in clocks: fitted to products of 32 to 2048 rows with the weights of an 8B
// model's layers and a square one (bench/results/h200/step8_many_rows_int4.txt), of which it finds the best shape but for one.
struct TileChoice {
  int rows, tokens;
  bool split;
  void (*run)(const OpContext& ctx, const QuantizedMatmulArgs& args, const Tensor& x);

  // Of the multiprocessor that has most to do; more than any where the shape cannot be.
  double clocks_of(const QuantizedMatmulArgs& args, int multiprocessors) const {
    const int64_t parts = args.weight->k / kPartColumns, m = args.x.dim(0);
    const int box = tokens_of_tile(m, tokens);
    const int64_t items = ceil_div<int64_t>(args.weight->n, rows) * ceil_div<int64_t>(m, box);
    const double of_stage = 185 + 1.27 * rows + 0.26 * box + 0.0217 * rows * tokens;
    if (!split) return static_cast<double>(ceil_div<int64_t>(items, multiprocessors) * parts) * of_stage;
    constexpr double kOfPartner = 4000, kNever = 1e30;
    if (2 * items > multiprocessors || parts < 2) return kNever;
    return static_cast<double>(ceil_div<int64_t>(parts, 2)) * of_stage + kOfPartner;
  }
};

template <int consumers, int tokens, bool split = false>
constexpr TileChoice choice() {
  using Shape = TileShape<consumers, 1, tokens>;
  return {Shape::kRows, tokens, split,
          [](const OpContext& ctx, const QuantizedMatmulArgs& args, const Tensor& x) {
            const auto run = [&](auto number, auto zeros) {
              launch<decltype(number), Shape, decltype(zeros)::value, split>(ctx, args, x);
            };
            const auto of_number = [&](auto number) {
              if (args.weight->records.zeros)
                run(number, std::true_type{});
              else
                run(number, std::false_type{});
            };
            if (x.dtype() == DType::f16)
              of_number(__half{});
            else
              of_number(__nv_bfloat16{});
          }};
}
constexpr std::array kChoices = {choice<1, 64>(),       choice<1, 128>(), choice<2, 64>(),
                                 choice<2, 128>(),      choice<2, 256>(), choice<1, 64, true>(),
                                 choice<1, 128, true>()};

}  // namespace

bool quantized_matmul_takes_wgmma(const QuantizedMatmulArgs& args) {
  const QuantizedWeight& weight = *args.weight;
  return weight.records.bytes.defined() && weight.type == WeightCodes::int4 &&
         record_layout(weight).groups == 1 && weight.k % kPartColumns == 0 &&
         dtype_size(args.x.dtype()) == 2 &&
         args.x.dim(0) <= (weight.n * weight.k < kSmall ? kMostRowsOfSmall : kMostRows) &&
         (args.activations ? are_rounded_on_a_gpu(*args.activations)
                           : weight.columns.defined() || is_packed(args.x));
}

int64_t quantized_matmul_wgmma_workspace(const QuantizedMatmulArgs& args) {
  return prepared_x_workspace(args) + args.x.dim(0) * args.weight->k * dtype_size(args.x.dtype());
}

void quantized_matmul_wgmma(const OpContext& ctx, const QuantizedMatmulArgs& args) {
  std::optional<Arena> own;  // for callers that bring no scratch memory
  Arena& arena = ctx.arena != nullptr ? *ctx.arena : own.emplace(ctx.device);
  ArenaScope scope(arena);
  const Tensor x = arena.take({args.x.dim(0), args.weight->k}, args.x.dtype());
  permute_columns(ctx, prepared_x(ctx, args, arena), x);
  const auto* best =
      std::min_element(kChoices.begin(), kChoices.end(), [&](const TileChoice& a, const TileChoice& b) {
        const int multiprocessors = ctx.cuda->num_multiprocessors();
        return a.clocks_of(args, multiprocessors) < b.clocks_of(args, multiprocessors);
      });
  best->run(ctx, args, x);
}

}  // namespace ladder

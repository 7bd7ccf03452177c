// The rungs for many rows of x: some rows of the weight at a time become floats, which stay in the L2 cache and are
// multiplied with all rows of x by matmul's kernels. Both sides are in the blocks' order (quantized_rows.h): a sum of
// products does not ask in which order its columns come.
#include <algorithm>

#include "step1_layers/core/parallel.h"
#include "step1_layers/linear/matmul_simd.h"
#include "step8_advanced/quantization/kernels/code_blocks.h"
#include "step8_advanced/quantization/kernels/dequantize_simd.h"
#include "step8_advanced/quantization/kernels/prepare_x.h"
#include "step8_advanced/quantization/kernels/quantized_matmul_rungs.h"

namespace ladder {

namespace {

constexpr int64_t kTileRows = 16;  // of the weight

struct Kernels {
  ActivationKernels activations;
  int64_t (*lanes)();
  void (*dequantize)(const QuantizedRows&, int64_t, int64_t, float*);
  void (*pack_x)(const void*, int64_t, const MatmulPanel&, int64_t, int64_t);
  void (*sums)(const MatmulPanel&);
};

// How a call is cut up, and the scratch memory it takes.
struct Split {
  int64_t columns = 0;  // of both sides: whole blocks
  int64_t tiles = 0, threads = 0;
  Shape table;                         // i32
  Shape row, ordered, packed, scales;  // f32: of each thread a row of x (three times); x
  Shape tile, sums;                    // f32: of each thread
};

Split split_of(const QuantizedMatmulArgs& args, int64_t lanes) {
  const QuantizedWeight& weight = *args.weight;
  const int64_t m = args.x.dim(0);
  Split split;
  split.columns = code_blocks(weight, lanes) * lanes * codes_per_lane(weight.type);
  split.tiles = (weight.n + kTileRows - 1) / kTileRows;
  split.threads = std::min<int64_t>(num_threads(), split.tiles);
  split.table = {group_table_size(weight, lanes)};
  split.row = {split.threads, 2 * weight.k};
  split.ordered = {m, split.columns};
  split.packed = {m,
                  split.columns / kMatmulChunk * kMatmulChunk + matmul_padded(split.columns % kMatmulChunk)};
  split.scales = {m};
  split.tile = {split.threads, kTileRows * split.columns};
  split.sums = {split.threads, m * kTileRows};
  return split;
}

int64_t workspace(const QuantizedMatmulArgs& args, int64_t lanes) {
  const Split split = split_of(args, lanes);
  return 4 * (split.table.numel() + split.row.numel() + split.ordered.numel() + split.packed.numel() +
              split.scales.numel() + split.tile.numel() + split.sums.numel());
}

void dequantized_tiles(const OpContext& ctx, const QuantizedMatmulArgs& args, const Kernels& kernels) {
  const int64_t m = args.x.dim(0), n = args.weight->n, k = args.weight->k, lanes = kernels.lanes();
  const Split split = split_of(args, lanes);
  Arena own;  // for callers that bring no scratch memory
  Arena& arena = ctx.arena != nullptr ? *ctx.arena : own;
  ArenaScope scope(arena);
  const Tensor table = arena.take(split.table, DType::i32), row_scratch = arena.take(split.row, DType::f32);
  const Tensor ordered = arena.take(split.ordered, DType::f32), packed = arena.take(split.packed, DType::f32);
  const Tensor scales = arena.take(split.scales, DType::f32);
  const Tensor tile = arena.take(split.tile, DType::f32), sums = arena.take(split.sums, DType::f32);

  const QuantizedRows weight = quantized_rows(*args.weight, lanes, table.data<int32_t>());
  const MatmulPanel whole{
      .dtype = DType::f32, .m = m, .k = split.columns, .x = packed.raw(), .weight_stride = split.columns};
  const auto for_each_thread = [&](auto&& fn) {
    parallel_for(split.threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t thread = begin; thread < end; ++thread) fn(thread);
    });
  };
  for_each_thread([&](int64_t thread) {
    float* values = row_scratch.data<float>() + thread * 2 * k;
    const int64_t begin = m * thread / split.threads, end = m * (thread + 1) / split.threads;
    for (int64_t row = begin; row < end; ++row) {
      scales.data<float>()[row] = prepare_row(args, row, kernels.activations, values + k, values);
      order_like_blocks(values, weight, lanes, false, ordered.data<float>() + row * split.columns);
    }
    kernels.pack_x(ordered.raw(), split.columns, whole, begin, end);
  });
  for_each_thread([&](int64_t thread) {
    MatmulPanel panel = whole;
    float* floats = tile.data<float>() + thread * kTileRows * split.columns;
    panel.weight = floats;
    panel.sums = sums.data<float>() + thread * m * kTileRows;
    for (int64_t i = split.tiles * thread / split.threads; i < split.tiles * (thread + 1) / split.threads;
         ++i) {
      const int64_t begin = i * kTileRows, end = std::min(begin + kTileRows, n);
      kernels.dequantize(weight, begin, end, floats);
      panel.n = end - begin;
      kernels.sums(panel);
      for (int64_t row = 0; row < m; ++row)
        store_row(args, row, scales.data<float>()[row], begin, end,
                  [&](int64_t j) { return panel.sums[row * panel.n + j - begin]; });
    }
  });
}

}  // namespace

bool dequantized_tiles_support(const QuantizedMatmulArgs& args) {
  return lanes_have_groups(*args.weight);
}

#define LADDER_DEQUANTIZED_TILES(isa)                                                         \
  int64_t dequantized_tiles_workspace_##isa(const QuantizedMatmulArgs& args) {                \
    return workspace(args, isa::code_lanes());                                                \
  }                                                                                           \
  void dequantized_tiles_##isa(const OpContext& ctx, const QuantizedMatmulArgs& args) {       \
    dequantized_tiles(ctx, args,                                                              \
                      {LADDER_ACTIVATION_KERNELS(isa), isa::code_lanes, isa::dequantize_rows, \
                       isa::matmul_pack_x, isa::matmul_sums});                                \
  }
LADDER_DEQUANTIZED_TILES(portable)
#if defined(__x86_64__)
LADDER_DEQUANTIZED_TILES(avx2)
LADDER_DEQUANTIZED_TILES(avx512)
#endif

}  // namespace ladder

// The rungs for few rows of x, as in decoding: reading the weight is all the time there is. Its rows are split among
// threads and go through few_rows_simd.h's kernel, which unpacks codes in registers: nothing is written but out.
#include <algorithm>

#include "step1_layers/core/parallel.h"
#include "step8_advanced/quantization/kernels/code_blocks.h"
#include "step8_advanced/quantization/kernels/dequantize_simd.h"
#include "step8_advanced/quantization/kernels/few_rows_simd.h"
#include "step8_advanced/quantization/kernels/prepare_x.h"
#include "step8_advanced/quantization/kernels/quantized_matmul_rungs.h"

namespace ladder {

namespace {

// Beyond, floats that are made once for all rows cost less than unpacking for four rows at a time.
constexpr int64_t kFewRows = 12;

struct Kernels {
  ActivationKernels activations;
  int64_t (*lanes)();
  void (*sums)(const QuantizedRows&, const FewRowsX&, int64_t, int64_t);
};

// The scratch memory a call takes.
struct Scratch {
  Shape table;                   // i32
  Shape plain, ordered, scales;  // f32: rows of x (twice) as they are stored, and in the blocks' order
  Shape sums;                    // f32
};

Scratch scratch_of(const QuantizedMatmulArgs& args, int64_t lanes) {
  const QuantizedWeight& weight = *args.weight;
  const int64_t m = args.x.dim(0), registers = codes_per_lane(weight.type) + (weight.zeros.defined() ? 1 : 0);
  return {.table = {group_table_size(weight, lanes)},
          .plain = {m, 2, weight.k},
          .ordered = {m, code_blocks(weight, lanes) * registers * lanes},
          .scales = {m},
          .sums = {m, weight.n}};
}

int64_t workspace(const QuantizedMatmulArgs& args, int64_t lanes) {
  const Scratch scratch = scratch_of(args, lanes);
  return 4 * (scratch.table.numel() + scratch.plain.numel() + scratch.ordered.numel() +
              scratch.scales.numel() + scratch.sums.numel());
}

void few_rows(const OpContext& ctx, const QuantizedMatmulArgs& args, const Kernels& kernels) {
  const int64_t m = args.x.dim(0), lanes = kernels.lanes();
  const Scratch scratch = scratch_of(args, lanes);
  Arena own;  // for callers that bring no scratch memory
  Arena& arena = ctx.arena != nullptr ? *ctx.arena : own;
  ArenaScope scope(arena);
  const Tensor table = arena.take(scratch.table, DType::i32);
  const Tensor plain = arena.take(scratch.plain, DType::f32),
               ordered = arena.take(scratch.ordered, DType::f32);
  const Tensor scales = arena.take(scratch.scales, DType::f32), sums = arena.take(scratch.sums, DType::f32);

  const QuantizedRows weight = quantized_rows(*args.weight, lanes, table.data<int32_t>());
  parallel_for(m, 4, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* values = plain.data<float>() + row * 2 * weight.k;
      scales.data<float>()[row] = prepare_row(args, row, kernels.activations, values + weight.k, values);
      order_like_blocks(values, weight, lanes, weight.zeros != nullptr,
                        ordered.data<float>() + row * ordered.stride(0));
    }
  });
  const FewRowsX x{.m = m,
                   .values = ordered.data<float>(),
                   .stride = ordered.stride(0),
                   .sums = sums.data<float>(),
                   .sums_stride = sums.stride(0)};
  parallel_for(args.weight->n, 16, [&](int64_t begin, int64_t end) {
    kernels.sums(weight, x, begin, end);
    for (int64_t row = 0; row < m; ++row)
      store_row(args, row, scales.data<float>()[row], begin, end,
                [&](int64_t j) { return x.sums[row * x.sums_stride + j]; });
  });
}

}  // namespace

bool few_rows_support(const QuantizedMatmulArgs& args) {
  return args.x.dim(0) <= kFewRows && lanes_have_groups(*args.weight);
}

#define LADDER_FEW_ROWS(isa)                                                                    \
  int64_t few_rows_workspace_##isa(const QuantizedMatmulArgs& args) {                           \
    return workspace(args, isa::code_lanes());                                                  \
  }                                                                                             \
  void few_rows_##isa(const OpContext& ctx, const QuantizedMatmulArgs& args) {                  \
    few_rows(ctx, args, {LADDER_ACTIVATION_KERNELS(isa), isa::code_lanes, isa::few_rows_sums}); \
  }
LADDER_FEW_ROWS(portable)
#if defined(__x86_64__)
LADDER_FEW_ROWS(avx2)
LADDER_FEW_ROWS(avx512)
#endif

}  // namespace ladder

// The rungs for 8-bit integers on both sides (W8A8), one scale per row of x and per row of the weight:
//
//   out[i][j] = row_scale[i] * scale[j] * (sum of x[i][k] code[j][k]  -  zero[j] * sum of x[i][k])  + bias[j]
//
// The sums are whole numbers of 32 bits, so all rungs, any tiles and any number of threads give the same bits.
#include <algorithm>

#include "step1_layers/core/parallel.h"
#include "step8_advanced/quantization/kernels/int8_simd.h"
#include "step8_advanced/quantization/kernels/prepare_x.h"
#include "step8_advanced/quantization/kernels/quantized_matmul_rungs.h"

namespace ladder {

namespace {

constexpr int64_t kPanelColumns = 48;  // rows of the weight that stay in the L2 cache

struct Kernels {
  ActivationKernels activations;
  void (*sums)(const Int8Panel&);
  bool vnni = false;
};

// How a call is cut up, and the scratch memory it takes.
struct Split {
  int64_t rows = 0;  // of x, and for vnni one of ones
  int64_t columns = 0, panels = 0, threads = 0;
  Shape row, scales;  // f32: of each thread a row of x (twice)
  Shape row_sums;     // i32
  Shape x;            // bytes
  Shape sums;         // i32, of each thread
};

Split split_of(const QuantizedMatmulArgs& args, bool vnni) {
  const int64_t m = args.x.dim(0), n = args.weight->n, k = args.weight->k;
  Split split;
  split.rows = m + (vnni ? 1 : 0);
  const int64_t share = (n + 4 * num_threads() - 1) / (4 * num_threads());
  split.columns = std::clamp<int64_t>((share + 3) / 4 * 4, 8, kPanelColumns);
  split.panels = (n + split.columns - 1) / split.columns;
  split.threads = std::min<int64_t>(num_threads(), split.panels);
  split.row = {split.threads, 2 * k};
  split.scales = {m};
  split.row_sums = {m};
  split.x = {split.rows, (k + kInt8Padding - 1) / kInt8Padding * kInt8Padding * (vnni ? 1 : 2)};
  split.sums = {split.threads, split.rows * split.columns};
  return split;
}

int64_t workspace(const QuantizedMatmulArgs& args, bool vnni) {
  const Split split = split_of(args, vnni);
  return 4 * (split.row.numel() + split.scales.numel() + split.row_sums.numel() + split.sums.numel()) +
         split.x.numel();
}

// Whole numbers of at most 9 bits as X, 128 more for u8; zeros up to the row's end. The result is their sum.
template <class X>
int32_t narrow_row(const float* values, int64_t k, int64_t padded, X* out) {
  constexpr int32_t kOffset = sizeof(X) == 1 ? 128 : 0;
  int32_t sum = 0;
  for (int64_t i = 0; i < k; ++i) {
    const auto value = static_cast<int32_t>(values[i]);
    sum += value;
    out[i] = static_cast<X>(value + kOffset);
  }
  std::fill(out + k, out + padded, X{0});
  return sum;
}

void int8_product(const OpContext& ctx, const QuantizedMatmulArgs& args, const Kernels& kernels) {
  const QuantizedWeight& weight = *args.weight;
  const int64_t m = args.x.dim(0), n = weight.n, k = weight.k;
  const Split split = split_of(args, kernels.vnni);
  Arena own;  // for callers that bring no scratch memory
  Arena& arena = ctx.arena != nullptr ? *ctx.arena : own;
  ArenaScope scope(arena);
  const Tensor row_scratch = arena.take(split.row, DType::f32), scales = arena.take(split.scales, DType::f32);
  const Tensor row_sums = arena.take(split.row_sums, DType::i32), x = arena.take(split.x, DType::u8);
  const Tensor sums = arena.take(split.sums, DType::i32);

  const int64_t padded = kernels.vnni ? x.dim(1) : x.dim(1) / 2;
  const auto for_each_thread = [&](auto&& fn) {
    parallel_for(split.threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t thread = begin; thread < end; ++thread) fn(thread);
    });
  };
  for_each_thread([&](int64_t thread) {
    float* values = row_scratch.data<float>() + thread * 2 * k;
    for (int64_t row = m * thread / split.threads; row < m * (thread + 1) / split.threads; ++row) {
      scales.data<float>()[row] = prepare_row(args, row, kernels.activations, values + k, values);
      uint8_t* to = x.data<uint8_t>() + row * x.stride(0);
      row_sums.data<int32_t>()[row] = kernels.vnni
                                          ? narrow_row(values, k, padded, to)
                                          : narrow_row(values, k, padded, reinterpret_cast<int16_t*>(to));
    }
  });
  if (kernels.vnni) std::fill_n(x.data<uint8_t>() + m * x.stride(0), padded, uint8_t{1});

  const Int8Panel whole{
      .m = split.rows, .k = k, .x = x.raw(), .x_stride = padded, .codes_stride = weight.codes.stride(0)};
  for_each_thread([&](int64_t thread) {
    for (int64_t i = split.panels * thread / split.threads; i < split.panels * (thread + 1) / split.threads;
         ++i) {
      const int64_t begin = i * split.columns, end = std::min(begin + split.columns, n);
      Int8Panel panel = whole;
      panel.n = end - begin;
      panel.codes = weight.codes.data<int8_t>() + begin * panel.codes_stride;
      panel.sums = sums.data<int32_t>() + thread * split.rows * split.columns;
      kernels.sums(panel);
      for (int64_t row = 0; row < m; ++row) {
        const int32_t* row_panel = panel.sums + row * panel.n;
        const int64_t row_sum = row_sums.data<int32_t>()[row];
        store_row(args, row, scales.data<float>()[row], begin, end, [&](int64_t j) {
          int64_t sum = row_panel[j - begin];
          if (kernels.vnni) sum -= 128 * int64_t{panel.sums[m * panel.n + j - begin]};
          if (weight.zeros.defined())
            sum -= row_sum * weight.zeros.data<int8_t>()[j * weight.zeros.stride(0)];
          return static_cast<double>(sum) *
                 static_cast<double>(weight.scales.data<float>()[j * weight.scales.stride(0)]);
        });
      }
    }
  });
}

}  // namespace

bool int8_supports(const QuantizedMatmulArgs& args) {
  return args.weight->type == WeightCodes::int8 && args.weight->num_groups() == 1 &&
         args.weight->k <= kInt8MaxColumns && args.activations && !args.activations->is_float &&
         args.activations->strategy != ScaleStrategy::group;
}

int64_t int8_workspace_madd(const QuantizedMatmulArgs& args) {
  return workspace(args, false);
}

void int8_portable(const OpContext& ctx, const QuantizedMatmulArgs& args) {
  int8_product(ctx, args, {LADDER_ACTIVATION_KERNELS(portable), portable::int8_madd_sums});
}

#if defined(__x86_64__)
void int8_avx2(const OpContext& ctx, const QuantizedMatmulArgs& args) {
  int8_product(ctx, args, {LADDER_ACTIVATION_KERNELS(avx2), avx2::int8_madd_sums});
}

void int8_avx512(const OpContext& ctx, const QuantizedMatmulArgs& args) {
  int8_product(ctx, args, {LADDER_ACTIVATION_KERNELS(avx512), avx512::int8_madd_sums});
}

// No level of CpuIsa says whether a processor has it: the first with AVX-512 do not. With a zero point x may have 9 bits.
bool int8_vnni_supports(const QuantizedMatmulArgs& args) {
  static const bool has_vnni = __builtin_cpu_supports("avx512vnni") != 0;
  return has_vnni && int8_supports(args) && args.activations->symmetric;
}

int64_t int8_workspace_vnni(const QuantizedMatmulArgs& args) {
  return workspace(args, true);
}

void int8_vnni(const OpContext& ctx, const QuantizedMatmulArgs& args) {
  int8_product(ctx, args, {LADDER_ACTIVATION_KERNELS(avx512), avx512::int8_vnni_sums, true});
}
#endif

}  // namespace ladder

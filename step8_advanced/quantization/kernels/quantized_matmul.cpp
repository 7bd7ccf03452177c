#include "step8_advanced/quantization/kernels/quantized_matmul.h"

#include "step8_advanced/quantization/kernels/quantized_matmul_rungs.h"
#include "step8_advanced/quantization/kernels/round_activations.h"
#include "step8_advanced/quantization/kernels/weight_records.h"
#ifdef LADDER_HAS_CUDA
#include "step8_advanced/quantization/kernels/quantized_matmul_cuda.h"
#endif

namespace ladder {

namespace {

void expect_adjacent(const Tensor& tensor, std::string_view what) {
  LADDER_CHECK(tensor.dim(-1) <= 1 || tensor.stride(-1) == 1,
               "quantized_matmul: the elements of a row of {} are not adjacent", what);
}

void check_records(const QuantizedWeight& weight) {
  LADDER_CHECK(!weight.codes.defined() && !weight.scales.defined() && !weight.zeros.defined(),
               "quantized_matmul: a weight in records that has codes, scales or zeros beside them");
  LADDER_CHECK(groups_fit_records(weight),
               "quantized_matmul: records of {} columns in groups of {} from {} on", weight.k,
               weight.group_size, weight.group_offset);
  expect_shape(weight.records.bytes,
               {(weight.n + kRecordRows - 1) / kRecordRows, (weight.k + kRecordColumns - 1) / kRecordColumns,
                record_layout(weight).bytes()},
               "quantized_matmul: records");
  expect_dtype(weight.records.bytes, DType::u8, "quantized_matmul: records");
  LADDER_CHECK(weight.records.bytes.is_contiguous(), "quantized_matmul: records are not contiguous");
  LADDER_CHECK(weight.records.bytes.device().type == DeviceType::cuda,
               "quantized_matmul: records are on {}, expected a GPU, whose kernels take them",
               device_name(weight.records.bytes.device()));
}

void check_weight(const QuantizedWeight& weight) {
  LADDER_CHECK(
      weight.k > 0 && weight.group_size > 0 && weight.group_offset >= 0 &&
          weight.group_offset < weight.group_size,
      "quantized_matmul: {} columns in groups of {} from {} on: expected columns, a group size and an "
      "offset below it",
      weight.k, weight.group_size, weight.group_offset);
  if (weight.columns.defined()) {
    expect_shape(weight.columns, {weight.k}, "quantized_matmul: columns");
    expect_dtype(weight.columns, DType::i32, "quantized_matmul: columns");
    expect_adjacent(weight.columns, "columns");
  }
  if (weight.records.bytes.defined()) {
    check_records(weight);
    return;
  }
  const int64_t groups = (weight.k + weight.group_offset + weight.group_size - 1) / weight.group_size;
  const DType integers = weight.type == WeightCodes::int8 ? DType::i8 : DType::u8;
  expect_shape(weight.codes, {weight.n, is_nibble(weight.type) ? (weight.k + 1) / 2 : weight.k},
               "quantized_matmul: codes");
  expect_dtype(weight.codes, integers, "quantized_matmul: codes");
  expect_adjacent(weight.codes, "codes");
  expect_shape(weight.scales, {weight.n, groups}, "quantized_matmul: scales");
  expect_dtype(weight.scales, DType::f32, "quantized_matmul: scales");
  expect_adjacent(weight.scales, "scales");
  if (weight.zeros.defined()) {
    LADDER_CHECK(weight.type == WeightCodes::int4 || weight.type == WeightCodes::int8,
                 "quantized_matmul: zero points of floats: expected none");
    expect_shape(weight.zeros, {weight.n, groups}, "quantized_matmul: zeros");
    expect_dtype(weight.zeros, integers, "quantized_matmul: zeros");
    expect_adjacent(weight.zeros, "zeros");
  }
}

}  // namespace

std::span<const Variant<QuantizedMatmulArgs>> quantized_matmul_variants() {
  static const Variant<QuantizedMatmulArgs> table[] = {
    {.name = "loop", .idea = "each weight dequantized where it is used", .run = quantized_matmul_loop},
    {.name = "tiles_portable",
     .idea = "some rows of the weight dequantized to floats once, for all rows of x",
     .supports = dequantized_tiles_support,
     .workspace = dequantized_tiles_workspace_portable,
     .run = dequantized_tiles_portable},
    // The rungs for few rows: whether they serve a call depends on its number of rows, so a row's bits would too.
    {.name = "rows_portable",
     .idea = "few rows: codes unpacked in registers and used at once, scales applied to sums",
     .batch_invariant = false,
     .supports = few_rows_support,
     .workspace = few_rows_workspace_portable,
     .run = few_rows_portable},
    {.name = "int8_portable",
     .idea = "integers on both sides: exact sums, scaled once",
     .supports = int8_supports,
     .workspace = int8_workspace_madd,
     .run = int8_portable},
#if defined(__x86_64__)
    {.name = "tiles_avx2",
     .idea = "the tiles in 256-bit registers",
     .min_arch = static_cast<int>(CpuIsa::avx2),
     .supports = dequantized_tiles_support,
     .workspace = dequantized_tiles_workspace_avx2,
     .run = dequantized_tiles_avx2},
    {.name = "rows_avx2",
     .idea = "few rows in 256-bit registers",
     .min_arch = static_cast<int>(CpuIsa::avx2),
     .batch_invariant = false,
     .supports = few_rows_support,
     .workspace = few_rows_workspace_avx2,
     .run = few_rows_avx2},
    {.name = "int8_avx2",
     .idea = "integers widened to 16 bits, neighbours' products added by one instruction",
     .min_arch = static_cast<int>(CpuIsa::avx2),
     .supports = int8_supports,
     .workspace = int8_workspace_madd,
     .run = int8_avx2},
    {.name = "tiles_avx512",
     .idea = "the tiles in 512-bit registers",
     .min_arch = static_cast<int>(CpuIsa::avx512),
     .supports = dequantized_tiles_support,
     .workspace = dequantized_tiles_workspace_avx512,
     .run = dequantized_tiles_avx512},
    {.name = "rows_avx512",
     .idea = "few rows in 512-bit registers: sixteen 4-bit codes become floats in one permutation",
     .min_arch = static_cast<int>(CpuIsa::avx512),
     .batch_invariant = false,
     .supports = few_rows_support,
     .workspace = few_rows_workspace_avx512,
     .run = few_rows_avx512},
    {.name = "int8_avx512",
     .idea = "integers in 512-bit registers",
     .min_arch = static_cast<int>(CpuIsa::avx512),
     .supports = int8_supports,
     .workspace = int8_workspace_madd,
     .run = int8_avx512},
    {.name = "int8_vnni",
     .idea = "64 products of 8-bit integers in one instruction",
     .min_arch = static_cast<int>(CpuIsa::avx512),
     .supports = int8_vnni_supports,
     .workspace = int8_workspace_vnni,
     .run = int8_vnni},
#endif
#ifdef LADDER_HAS_CUDA
    {.name = "dequantized",
     .device = DeviceType::cuda,
     .idea = "the weight written out as x's dtype, some rows at a time, then the dense product",
     .supports = quantized_matmul_takes_dequantized,
     .workspace = quantized_matmul_dequantized_workspace,
     .run = quantized_matmul_dequantized},
    {.name = "wgmma",
     .device = DeviceType::cuda,
     .idea =
         "many rows: 4-bit codes become numbers in registers while the tensor cores multiply those before them",
     .min_arch = 90,
     .batch_invariant = false,
     .supports = quantized_matmul_takes_wgmma,
     .workspace = quantized_matmul_wgmma_workspace,
     .run = quantized_matmul_wgmma},
    {.name = "cublaslt_8bit",
     .device = DeviceType::cuda,
     .idea = "8-bit codes on both sides go to the tensor cores as they are; scales belong to sums",
     .min_arch = 90,
     .batch_invariant = false,
     .supports = quantized_matmul_takes_cublaslt_8bit,
     .workspace = quantized_matmul_cublaslt_8bit_workspace,
     .run = quantized_matmul_cublaslt_8bit},
    {.name = "wgmma_8bit",
     .device = DeviceType::cuda,
     .idea =
         "the same tile by tile in a kernel of our own: the tensor cores go on while outputs are scaled and written",
     .min_arch = 90,
     .batch_invariant = false,
     .supports = quantized_matmul_takes_wgmma_8bit,
     .workspace = quantized_matmul_wgmma_8bit_workspace,
     .run = quantized_matmul_wgmma_8bit},
    {.name = "rows_stream_8bit",
     .device = DeviceType::cuda,
     .idea =
         "few rows: the same codes through a ring, folded so that a block's few rows of the weight fill a wgmma",
     .min_arch = 90,
     .batch_invariant = false,
     .supports = quantized_matmul_takes_rows_stream_8bit,
     .workspace = quantized_matmul_rows_stream_8bit_workspace,
     .run = quantized_matmul_rows_stream_8bit},
    {.name = "rows_stream",
     .device = DeviceType::cuda,
     .idea =
         "few rows: codes in the order of mma operands come through a ring per warp, and become numbers in registers",
     .min_arch = 90,
     .batch_invariant = false,
     .supports = quantized_matmul_takes_rows_stream,
     .workspace = quantized_matmul_rows_stream_workspace,
     .run = quantized_matmul_rows_stream},
#endif
  };
  return table;
}

Choice<QuantizedMatmulArgs> choose_quantized_matmul(const OpContext& ctx, const QuantizedMatmulArgs& args) {
  return choose_variant("quantized_matmul", quantized_matmul_variants(), ctx, args);
}

void quantized_matmul(const OpContext& ctx, const QuantizedMatmulArgs& args) {
  LADDER_CHECK(args.weight != nullptr, "quantized_matmul: no weight");
  const QuantizedWeight& weight = *args.weight;
  check_weight(weight);
  expect_shape(args.x, {-1, weight.k}, "quantized_matmul: x");
  expect_shape(args.out, {args.x.dim(0), weight.n}, "quantized_matmul: out");
  if (args.x.dtype() != DType::f32 && args.x.dtype() != DType::bf16 && args.x.dtype() != DType::f16)
    fail_not_floating(args.x.dtype(), "quantized_matmul");
  if (args.out.dtype() != DType::f32) expect_dtype(args.out, args.x.dtype(), "quantized_matmul: out");
  if (args.bias.defined()) {
    expect_shape(args.bias, {weight.n}, "quantized_matmul: bias");
    expect_dtype(args.bias, args.x.dtype(), "quantized_matmul: bias");
    expect_adjacent(args.bias, "bias");
  }
  expect_adjacent(args.x, "x");
  expect_adjacent(args.out, "out");
  if (args.activations) check_activations(*args.activations, args.input_scale);
  if (args.out.numel() == 0) return;
  choose_quantized_matmul(ctx, args).variant->run(ctx, args);
}

}  // namespace ladder

#include "step1_layers/linear/matmul.h"

#include <algorithm>
#include <bit>

#include "step1_layers/core/kernel_table.h"
#include "step1_layers/linear/matmul_rungs.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/linear/matmul_cuda.h"
#endif

namespace ladder {

namespace {

void expect_adjacent(const Tensor& tensor, std::string_view what) {
  LADDER_CHECK(tensor.dim(-1) <= 1 || tensor.stride(-1) == 1,
               "matmul: the elements of a row of {} are not adjacent", what);
}

}  // namespace

std::span<const Variant<MatmulArgs>> matmul_variants() {
  static const Variant<MatmulArgs> table[] = {
    {.name = "loop", .idea = "three loops, one sum at a time", .run = matmul_loop},
    {.name = "portable",
     .idea = "tiles in registers, chunks in the caches, threads",
     .workspace = matmul_panels_workspace,
     .run = matmul_portable},
#if defined(__x86_64__)
    {.name = "avx2",
     .idea = "the same tiles, 8 lanes with fused multiply-add",
     .min_arch = static_cast<int>(CpuIsa::avx2),
     .workspace = matmul_panels_workspace,
     .run = matmul_avx2},
#endif
#ifdef LADDER_HAS_ONEDNN
    {.name = "onednn",
     .idea = "the library's blocked kernels, for many rows",
     .batch_invariant = false,
     .supports = matmul_onednn_supports,
     .workspace = matmul_onednn_workspace,
     .run = matmul_onednn},
#endif
#if defined(__x86_64__)
    // Above the library. In f32 it is a little slower, but f32 is served by batch-invariant rungs; in bf16,
    // widening and multiplying in float is faster than the bf16 dot product instruction that the library uses
    // (the chapter has the figures).
    {.name = "avx512",
     .idea = "16 lanes and 32 registers: tiles of 24 sums",
     .min_arch = static_cast<int>(CpuIsa::avx512),
     .workspace = matmul_panels_workspace,
     .run = matmul_avx512},
#endif
#ifdef LADDER_HAS_ONEDNN
    {.name = "onednn_amx",
     .idea = "the library again, with the processor's matrix unit for bf16",
     .min_arch = static_cast<int>(CpuIsa::amx),
     .batch_invariant = false,
     .supports = matmul_onednn_takes_amx,
     .workspace = matmul_onednn_workspace,
     .run = matmul_onednn},
#endif
#ifdef LADDER_HAS_CUDA
    {.name = "naive", .device = DeviceType::cuda, .idea = "an output per thread", .run = matmul_cuda_naive},
    {.name = "tiled",
     .device = DeviceType::cuda,
     .idea = "64 x 64 outputs per block: what comes to shared memory is used 64 times",
     .run = matmul_cuda_tiled},
    {.name = "tensor_core",
     .device = DeviceType::cuda,
     .idea = "mma on 128 x 128 tiles, copied three stages ahead",
     .min_arch = 80,
     .supports = matmul_takes_tensor_core,
     .run = matmul_cuda_tensor_core},
    {.name = "cublaslt",
     .device = DeviceType::cuda,
     .idea = "the library's kernel for the shape, looked up once",
     .batch_invariant = false,
     .supports = matmul_takes_cublaslt,
     .run = matmul_cublaslt},
    // The rungs for few rows: whether they serve a call depends on its number of rows, so a row's bits would
    // too.
    {.name = "rows_warp",
     .device = DeviceType::cuda,
     .idea = "few rows: a warp per row of the weight, which is read once",
     .batch_invariant = false,
     .supports = matmul_takes_rows_warp,
     .run = matmul_rows_warp},
    {.name = "rows_vectorized",
     .device = DeviceType::cuda,
     .idea = "few rows: sixteen bytes per load, four loads in flight",
     .batch_invariant = false,
     .supports = matmul_takes_rows_vectorized,
     .run = matmul_rows_vectorized},
    {.name = "rows_tensor_core",
     .device = DeviceType::cuda,
     .idea =
         "few rows: the weight straight from memory into mma fragments, sixteen rows for the price of one",
     .min_arch = 80,
     .batch_invariant = false,
     .supports = matmul_takes_rows_tensor_core,
     .run = matmul_rows_tensor_core},
    {.name = "rows_stream",
     .device = DeviceType::cuda,
     .idea = "few rows: a queue of copies per thread, filled before the previous kernel ends",
     .min_arch = 90,
     .batch_invariant = false,
     .supports = matmul_takes_rows_stream,
     .run = matmul_rows_stream},
    {.name = "rows_split_k",
     .device = DeviceType::cuda,
     .idea = "few rows, a weight of few rows: several blocks share sixteen of them",
     .min_arch = 80,
     .batch_invariant = false,
     .supports = matmul_takes_rows_split_k,
     .run = matmul_rows_split_k},
#endif
  };
  return table;
}

int64_t last_of_row_class(int64_t rows) {
  if (rows <= 16) return rows;
  const auto half_octave = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(rows - 1)) / 2);
  const int64_t step = rows <= 256 ? 8 : rows <= 1024 ? 64 : half_octave;
  return (rows + step - 1) / step * step;
}

std::vector<int64_t> row_classes(int64_t max_rows) {
  std::vector<int64_t> classes;
  for (int64_t rows = 1; rows <= max_rows; rows = classes.back() + 1)
    classes.push_back(std::min(last_of_row_class(rows), max_rows));
  return classes;
}

Choice<MatmulArgs> choose_matmul(const OpContext& ctx, const MatmulArgs& args) {
  return choose_variant(
      "matmul", matmul_variants(), ctx, args,
      measured_kernel(ctx, "matmul", args.x.dtype(), args.x.dim(0), args.weight.dim(0), args.x.dim(1)));
}

void matmul(const OpContext& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
            const Tensor& out) {
  expect_shape(x, {-1, -1}, "matmul: x");
  expect_shape(weight, {-1, x.dim(1)}, "matmul: weight");
  expect_shape(out, {x.dim(0), weight.dim(0)}, "matmul: out");
  expect_dtype(weight, x.dtype(), "matmul: weight");
  if (x.dtype() != DType::f32 && x.dtype() != DType::bf16 && x.dtype() != DType::f16)
    fail_not_floating(x.dtype(), "matmul");
  if (out.dtype() != DType::f32) expect_dtype(out, x.dtype(), "matmul: out");
  if (bias.defined()) {
    expect_shape(bias, {weight.dim(0)}, "matmul: bias");
    expect_dtype(bias, x.dtype(), "matmul: bias");
    expect_adjacent(bias, "bias");
  }
  expect_adjacent(x, "x");
  expect_adjacent(weight, "weight");
  expect_adjacent(out, "out");
  if (out.numel() == 0) return;
  const MatmulArgs args{x, weight, bias, out};
  choose_matmul(ctx, args).variant->run(ctx, args);
}

}  // namespace ladder

#include "step8_advanced/quantization/kernels/sparse_matmul.h"

#include <cstring>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#ifdef LADDER_HAS_CUDA
#include "step8_advanced/quantization/kernels/sparse_matmul_cuda.h"
#endif

namespace ladder {

namespace {

// The definition: a value of the weight times the column of x that its index names.
void sparse_matmul_loop(const OpContext&, const SparseMatmulArgs& args) {
  const SparseWeight& weight = *args.weight;
  with_float_type(weight.dtype, "sparse_matmul", [&](auto tag) {
    using T = decltype(tag);
    with_float_type(args.out.dtype(), "sparse_matmul", [&](auto out_tag) {
      using Out = decltype(out_tag);
      parallel_for(weight.n, 8, [&](int64_t begin, int64_t end) {
        for (int64_t j = begin; j < end; ++j)
          for (int64_t i = 0; i < args.x.dim(0); ++i) {
            const T* x = args.x.data<T>() + i * args.x.stride(0);
            double sum =
                args.bias.defined() ? static_cast<double>(static_cast<float>(args.bias.data<T>()[j])) : 0.0;
            for (int64_t value = 0; value < weight.k / 2; ++value) {
              const uint8_t* record =
                  weight.records.data<uint8_t>() +
                  (j / kSparseRows * weight.records.dim(1) + value / (kSparseColumns / 2)) *
                      kSparseRecordBytes;
              const int64_t row = j % kSparseRows, four = value / 2 % (kSparseColumns / 4);
              uint32_t word;
              T number;
              std::memcpy(&word, record + sparse_index_at(row, four), sizeof(word));
              std::memcpy(&number, record + sparse_value_at(row, value % (kSparseColumns / 2)),
                          sizeof(number));
              const uint32_t index = word >> (sparse_index_bit(row, four) + 2 * (value % 2)) & 3;
              sum += static_cast<double>(static_cast<float>(number)) *
                     static_cast<double>(static_cast<float>(x[value / 2 * 4 + index]));
            }
            args.out.data<Out>()[i * args.out.stride(0) + j] = static_cast<Out>(static_cast<float>(sum));
          }
      });
    });
  });
}

void expect_adjacent(const Tensor& tensor, std::string_view what) {
  LADDER_CHECK(tensor.dim(-1) <= 1 || tensor.stride(-1) == 1,
               "sparse_matmul: the elements of a row of {} are not adjacent", what);
}

}  // namespace

std::span<const Variant<SparseMatmulArgs>> sparse_matmul_variants() {
  static const Variant<SparseMatmulArgs> table[] = {
      {.name = "loop",
       .idea = "a value times the column of x that its index names",
       .run = sparse_matmul_loop},
#ifdef LADDER_HAS_CUDA
      {.name = "gather",
       .device = DeviceType::cuda,
       .idea = "an output per thread, which looks its columns of x up",
       .run = sparse_matmul_gather},
      {.name = "wgmma",
       .device = DeviceType::cuda,
       .idea = "many rows: the tensor cores pick the columns, and skip half of the multiplications",
       .min_arch = 90,
       .batch_invariant = false,
       .supports = sparse_matmul_takes_wgmma,
       .run = sparse_matmul_wgmma},
      {.name = "rows_stream",
       .device = DeviceType::cuda,
       .idea = "few rows: records come through a ring per warp, as operands of mma.sp as they lie",
       .min_arch = 90,
       .batch_invariant = false,
       .supports = sparse_matmul_takes_rows_stream,
       .run = sparse_matmul_rows_stream},
#endif
  };
  return table;
}

Choice<SparseMatmulArgs> choose_sparse_matmul(const OpContext& ctx, const SparseMatmulArgs& args) {
  return choose_variant("sparse_matmul", sparse_matmul_variants(), ctx, args);
}

void sparse_matmul(const OpContext& ctx, const SparseMatmulArgs& args) {
  LADDER_CHECK(args.weight != nullptr, "sparse_matmul: no weight");
  const SparseWeight& weight = *args.weight;
  LADDER_CHECK(weight.dtype == DType::bf16 || weight.dtype == DType::f16,
               "sparse_matmul: values in {}, expected bf16 or f16", dtype_name(weight.dtype));
  LADDER_CHECK(weight.k % 4 == 0, "sparse_matmul: {} columns, expected a multiple of 4", weight.k);
  expect_shape(weight.records,
               {(weight.n + kSparseRows - 1) / kSparseRows, (weight.k + kSparseColumns - 1) / kSparseColumns,
                kSparseRecordBytes},
               "sparse_matmul: records");
  expect_dtype(weight.records, DType::u8, "sparse_matmul: records");
  LADDER_CHECK(weight.records.is_contiguous(), "sparse_matmul: records are not contiguous");
  expect_shape(args.x, {-1, weight.k}, "sparse_matmul: x");
  expect_dtype(args.x, weight.dtype, "sparse_matmul: x");
  expect_shape(args.out, {args.x.dim(0), weight.n}, "sparse_matmul: out");
  if (args.out.dtype() != DType::f32) expect_dtype(args.out, weight.dtype, "sparse_matmul: out");
  if (args.bias.defined()) {
    expect_shape(args.bias, {weight.n}, "sparse_matmul: bias");
    expect_dtype(args.bias, weight.dtype, "sparse_matmul: bias");
    expect_adjacent(args.bias, "bias");
  }
  expect_adjacent(args.x, "x");
  expect_adjacent(args.out, "out");
  if (args.out.numel() == 0) return;
  choose_sparse_matmul(ctx, args).variant->run(ctx, args);
}

}  // namespace ladder

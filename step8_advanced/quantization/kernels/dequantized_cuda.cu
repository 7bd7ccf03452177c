// The clear rung on a GPU, and the one for many rows of x: the weight written out as x's dtype, some rows of it at a time, then
// step 1's product.
#include <algorithm>
#include <optional>

#include "step1_layers/linear/matmul.h"
#include "step8_advanced/quantization/kernels/prepare_x_cuda.h"
#include "step8_advanced/quantization/kernels/quantized_matmul_cuda.h"
#include "step8_advanced/quantization/kernels/round_activations.h"
#include "step8_advanced/quantization/kernels/row_codes.cuh"

namespace ladder {

namespace {

// Written out at a time: columns enough for a good product, and memory that is small beside a model's.
constexpr int64_t kChunkElements = int64_t{1} << 26;
constexpr int kThreads = 256;

int64_t rows_of_chunk(const QuantizedWeight& weight) {
  return std::min(std::max<int64_t>(kChunkElements / weight.k / 128, 1) * 128, weight.n);
}

}  // namespace

// >>> task 8.4.cuda: the weight's codes on a GPU, written out as numbers
namespace {

// Rows [first_row, first_row + rows) to out [rows, k]; a thread has kCodesAtOnce neighbours.
template <class T, WeightCodes type, class Weight>
__global__ void __launch_bounds__(kThreads)
    dequantize_rows(Weight weight, int64_t first_row, int64_t rows, int64_t k, T* out) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t packs = ceil_div<int64_t>(k, kCodesAtOnce);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows * packs) return;
  const int64_t row = i / packs, first = i % packs * kCodesAtOnce;
  RowOfCodes from;
  weight.load(first_row + row, first, from);
  alignas(16) T values[kCodesAtOnce];
#pragma unroll
  for (int c = 0; c < kCodesAtOnce; ++c)
    values[c] = from_float<T>(number_of<type>(from.code[c], from.zero[c]) * from.scale[c]);
  T* to = out + row * k + first;
  if (k % kCodesAtOnce == 0) {
    constexpr int kPacks = kCodesAtOnce / Pack<T>::kSize;
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack)
      store_pack(to + pack * Pack<T>::kSize, load_pack(values + pack * Pack<T>::kSize));
  } else {
    for (int c = 0; c < kCodesAtOnce && first + c < k; ++c) to[c] = values[c];
  }
}

}  // namespace

void write_out_rows(const OpContext& ctx, const QuantizedWeight& weight, int64_t first_row,
                    const Tensor& out) {
  const int64_t rows = out.dim(0), threads = rows * ceil_div<int64_t>(weight.k, kCodesAtOnce);
  with_cuda_type(out.dtype(), [&](auto tag) {
    using T = decltype(tag);
    with_codes(weight.type, [&](auto type) {
      using Source = PlainWeight<decltype(type)::value>;
      launch_kernel(ctx, dequantize_rows<T, decltype(type)::value, Source>,
                    static_cast<unsigned>(ceil_div<int64_t>(threads, kThreads)), kThreads, 0, Source(weight),
                    first_row, rows, weight.k, cuda_data<T>(out));
    });
  });
}

// <<< task 8.4.cuda

bool quantized_matmul_takes_dequantized(const QuantizedMatmulArgs& args) {
  return !args.activations || are_rounded_on_a_gpu(*args.activations);
}

int64_t quantized_matmul_dequantized_workspace(const QuantizedMatmulArgs& args) {
  const QuantizedWeight& weight = *args.weight;
  return prepared_x_workspace(args) + rows_of_chunk(weight) * weight.k * dtype_size(args.x.dtype());
}

void write_out_weight(const OpContext& ctx, const QuantizedWeight& weight, int64_t first_row,
                      const Tensor& out) {
  (weight.records.bytes.defined() ? write_out_records : write_out_rows)(ctx, weight, first_row, out);
}

void quantized_matmul_dequantized(const OpContext& ctx, const QuantizedMatmulArgs& args) {
  const QuantizedWeight& weight = *args.weight;
  std::optional<Arena> own;  // for callers that bring no scratch memory
  Arena& arena = ctx.arena != nullptr ? *ctx.arena : own.emplace(ctx.device);
  ArenaScope scope(arena);
  const Tensor x = prepared_x(ctx, args, arena);
  const int64_t chunk = rows_of_chunk(weight);
  const Tensor dense = arena.take({chunk, weight.k}, args.x.dtype());
  for (int64_t first = 0; first < weight.n; first += chunk) {
    const int64_t rows = std::min(chunk, weight.n - first);
    write_out_weight(ctx, weight, first, dense.rows(rows));
    matmul(ctx, x, dense.rows(rows), args.bias.defined() ? args.bias.narrow(0, first, rows) : args.bias,
           args.out.narrow(1, first, rows));
  }
}

}  // namespace ladder

// The product with a weight of which two of four are kept, an output per thread.
#include <algorithm>

#include "step1_layers/core/cuda_kernel.cuh"
#include "step8_advanced/quantization/kernels/sparse_matmul_cuda.h"

namespace ladder {

namespace {

constexpr int kThreads = 256;

// gather: any shape. Neighbouring threads have neighbouring rows of the weight, and all of them the row blockIdx.y of x, whose columns
// they look up. The weight is read once for every row of x.
template <class T, class Out>
__global__ void __launch_bounds__(kThreads)
    gather_products(const T* x, int64_t x_stride, const uint8_t* records, int64_t records_of_row, int64_t n,
                    int64_t k, const T* bias, Out* out, int64_t out_stride) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t j = int64_t{blockIdx.x} * kThreads + threadIdx.x, row = j % kSparseRows;
  if (j >= n) return;
  const T* from = x + blockIdx.y * x_stride;
  const uint8_t* record = records + j / kSparseRows * records_of_row * kSparseRecordBytes;
  float sum = 0;
  // As sparse_value_at() and sparse_index_at() say, which are the host's.
  const uint8_t* values_of_row = record + row / 8 * 512 + row % 8 * 16;
  const uint8_t* words_of_row = record + kSparseValueBytes + row / 16 * 128 + row % 8 * 16;
  for (int64_t column = 0; column < k; column += 4) {
    const int64_t four = column % kSparseColumns / 4,
                  to_record = column / kSparseColumns * kSparseRecordBytes;
    const uint32_t word = *reinterpret_cast<const uint32_t*>(words_of_row + to_record + four / 4 * 4);
    const uint32_t indices = word >> (row % 16 / 8 * 16 + four % 4 * 4);
    const T* values = reinterpret_cast<const T*>(values_of_row + to_record + four / 4 * 128 + four % 4 * 4);
    sum = fmaf(to_float(values[0]), to_float(from[column + (indices & 3)]), sum);
    sum = fmaf(to_float(values[1]), to_float(from[column + (indices >> 2 & 3)]), sum);
  }
  if (bias != nullptr) sum += to_float(bias[j]);
  out[blockIdx.y * out_stride + j] = from_float<Out>(sum);
}

}  // namespace

void sparse_matmul_gather(const OpContext& ctx, const SparseMatmulArgs& args) {
  const SparseWeight& weight = *args.weight;
  with_cuda_type(weight.dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto launch = [&](auto out_tag) {
      using Out = decltype(out_tag);
      constexpr int64_t kMostRows = 65535;  // of a launch: blockIdx.y
      for (int64_t first = 0; first < args.x.dim(0); first += kMostRows) {
        const int64_t rows = std::min(kMostRows, args.x.dim(0) - first);
        const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(weight.n, kThreads)),
                        static_cast<unsigned>(rows));
        launch_kernel(ctx, gather_products<T, Out>, grid, kThreads, 0,
                      cuda_data<T>(args.x) + first * args.x.stride(0), args.x.stride(0),
                      cuda_data<uint8_t>(weight.records), weight.records.dim(1), weight.n, weight.k,
                      cuda_data<T>(args.bias), cuda_data<Out>(args.out) + first * args.out.stride(0),
                      args.out.stride(0));
      }
    };
    if (args.out.dtype() == DType::f32)
      launch(float{});
    else
      launch(T{});
  });
}

}  // namespace ladder

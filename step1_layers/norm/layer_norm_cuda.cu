// LayerNorm on the GPU. Both: residual = residual + x, rounded, where fused; then out = norm(residual), else
// norm(x).
#include <type_traits>

#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/core/packed.h"
#include "step1_layers/core/packs.cuh"
#include "step1_layers/norm/layer_norm_cuda.h"

namespace ladder {

namespace {

constexpr int kNaiveThreads = 64, kPackThreads = 256, kMaxPacks = 8;  // packs of a thread

template <class T>
struct LayerNormRows {
  const T* x;
  T* residual;  // nullptr for the plain norm
  const T *weight, *bias;
  T* out;
  int64_t rows, width, x_stride, residual_stride, out_stride;
  float eps;
};

template <class Args>
constexpr bool fuses() {
  return std::is_same_v<Args, FusedAddLayerNormArgs>;
}

template <class T, class Args>
LayerNormRows<T> layer_norm_rows(const Args& args) {
  LayerNormRows<T> norm{.x = cuda_data<T>(args.x),
                        .residual = nullptr,
                        .weight = cuda_data<T>(args.weight),
                        .bias = cuda_data<T>(args.bias),
                        .out = cuda_data<T>(args.out),
                        .rows = args.x.dim(0),
                        .width = args.x.dim(1),
                        .x_stride = args.x.stride(0),
                        .residual_stride = 0,
                        .out_stride = args.out.stride(0),
                        .eps = static_cast<float>(args.eps)};
  if constexpr (fuses<Args>()) {
    norm.residual = cuda_data<T>(args.residual);
    norm.residual_stride = args.residual.stride(0);
  }
  return norm;
}

// naive
// Any shape. A thread owns a row, as in rms_norm_cuda.cu.
template <bool fused, class T>
__global__ void norm_naive(LayerNormRows<T> norm) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= norm.rows) return;
  const T* x = norm.x + row * norm.x_stride;
  T *residual = norm.residual + row * norm.residual_stride, *out = norm.out + row * norm.out_stride;
  const auto count = static_cast<float>(norm.width);
  float sum = 0, squares = 0;
  for (int64_t i = 0; i < norm.width; ++i) {
    if constexpr (fused) residual[i] = from_float<T>(to_float(residual[i]) + to_float(x[i]));
    sum += to_float(fused ? residual[i] : x[i]);
  }
  const float mean = sum / count;
  for (int64_t i = 0; i < norm.width; ++i) {
    const float difference = to_float(fused ? residual[i] : x[i]) - mean;
    squares += difference * difference;
  }
  const float scale = rsqrtf(squares / count + norm.eps);
  for (int64_t i = 0; i < norm.width; ++i)
    out[i] = from_float<T>((to_float(fused ? residual[i] : x[i]) - mean) * scale * to_float(norm.weight[i]) +
                           to_float(norm.bias[i]));
}

// packs
// Rows of whole 16-byte packs (packed.h), at most 2048 of them. A block owns a row and keeps it in registers:
// three passes over the values, one over memory. The split of a row depends on its width alone: batch
// invariant.
template <bool fused, int packs, class T>
__global__ void __launch_bounds__(kPackThreads) norm_packs(LayerNormRows<T> norm) {
  constexpr int kSize = Pack<T>::kSize;
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t row = blockIdx.x;
  const int row_packs = static_cast<int>(norm.width / kSize), thread = threadIdx.x;
  const T* x = norm.x + row * norm.x_stride;
  T *residual = norm.residual + row * norm.residual_stride, *out = norm.out + row * norm.out_stride;
  const auto count = static_cast<float>(norm.width);
  float values[packs][kSize];
  float sum = 0, squares = 0;
#pragma unroll
  for (int j = 0; j < packs; ++j) {
    const int pack = thread + j * kPackThreads;
    if (pack >= row_packs) continue;
    to_floats(load_pack(x + pack * kSize), values[j]);
    if constexpr (fused) {
      float added[kSize];
      to_floats(load_pack(residual + pack * kSize), added);
#pragma unroll
      for (int k = 0; k < kSize; ++k) values[j][k] += added[k];
      const Pack<T> rounded = from_floats<T>(values[j]);  // the norm is of the rounded sum
      store_pack(residual + pack * kSize, rounded);
      to_floats(rounded, values[j]);
    }
#pragma unroll
    for (int k = 0; k < kSize; ++k) sum += values[j][k];
  }
  const float mean = block_sum(sum) / count;
#pragma unroll
  for (int j = 0; j < packs; ++j) {
    if (thread + j * kPackThreads >= row_packs) continue;
#pragma unroll
    for (int k = 0; k < kSize; ++k) squares += (values[j][k] - mean) * (values[j][k] - mean);
  }
  const float scale = rsqrtf(block_sum(squares) / count + norm.eps);
#pragma unroll
  for (int j = 0; j < packs; ++j) {
    const int pack = thread + j * kPackThreads;
    if (pack >= row_packs) continue;
    float weight[kSize], bias[kSize];
    to_floats(load_pack(norm.weight + pack * kSize), weight);
    to_floats(load_pack(norm.bias + pack * kSize), bias);
#pragma unroll
    for (int k = 0; k < kSize; ++k) values[j][k] = (values[j][k] - mean) * scale * weight[k] + bias[k];
    store_pack(out + pack * kSize, from_floats<T>(values[j]));
  }
}

// As few packs a thread as the row allows.
template <bool fused, int packs = 1, class T>
void launch_packs(const OpContext& ctx, const LayerNormRows<T>& norm) {
  if constexpr (packs < kMaxPacks)
    if (norm.width / Pack<T>::kSize > packs * kPackThreads) return launch_packs<fused, 2 * packs>(ctx, norm);
  launch_kernel(ctx, norm_packs<fused, packs, T>, static_cast<unsigned>(norm.rows), kPackThreads, 0, norm);
}

}  // namespace

template <class Args>
void layer_norm_cuda_naive(const OpContext& ctx, const Args& args) {
  if (args.x.numel() == 0) return;
  with_cuda_type(args.x.dtype(), [&](auto tag) {
    const auto norm = layer_norm_rows<decltype(tag)>(args);
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(norm.rows, kNaiveThreads));
    norm_naive<fuses<Args>()><<<blocks, kNaiveThreads, 0, stream_of(ctx)>>>(norm);
  });
  LADDER_CUDA_CHECK(cudaGetLastError());
}

template <class Args>
void layer_norm_cuda_packs(const OpContext& ctx, const Args& args) {
  if (args.x.numel() == 0) return;
  with_cuda_type(args.x.dtype(),
                 [&](auto tag) { launch_packs<fuses<Args>()>(ctx, layer_norm_rows<decltype(tag)>(args)); });
}

template <class Args>
bool layer_norm_fits_packs(const Args& args) {
  if constexpr (fuses<Args>())
    if (!is_packed(args.residual)) return false;
  return is_packed(args.x) && is_packed(args.weight) && is_packed(args.bias) && is_packed(args.out) &&
         args.x.dim(1) * dtype_size(args.x.dtype()) / 16 <= kMaxPacks * kPackThreads;
}

template void layer_norm_cuda_naive(const OpContext&, const LayerNormArgs&);
template void layer_norm_cuda_naive(const OpContext&, const FusedAddLayerNormArgs&);
template void layer_norm_cuda_packs(const OpContext&, const LayerNormArgs&);
template void layer_norm_cuda_packs(const OpContext&, const FusedAddLayerNormArgs&);
template bool layer_norm_fits_packs(const LayerNormArgs&);
template bool layer_norm_fits_packs(const FusedAddLayerNormArgs&);

}  // namespace ladder

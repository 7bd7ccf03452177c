// RMSNorm for any shape: the rungs that the one of rms_norm_registers_cuda.cu is explained against.
#include "step1_layers/norm/norm_rows_cuda.cuh"

namespace ladder {

namespace {

constexpr int kNaiveThreads = 64, kBlockThreads = 256;

// naive
// Any shape. A thread owns a row: the CPU's loop, many rows at once. Neighbouring threads read addresses a
// whole row apart, so every element costs a memory transaction of 32 bytes of its own.
//
// block
// Any shape. A block owns a row and its threads read neighbouring elements, so a warp's loads merge into full
// transactions; the squares are added by shuffles (block_sum). The row is read twice, the second time from L1
// or L2.
//
// Both: residual = residual + x, rounded, where `fused`; then out = norm(residual), else norm(x).

}  // namespace

// >>> task 1.3.cuda: RMSNorm on the GPU, a row per thread and a row per block
namespace {

template <bool fused, class T>
__global__ void norm_naive(NormRows<T> norm) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= norm.rows) return;
  const T* x = norm.x + norm.x_at(row);
  T *residual = norm.residual + row * norm.residual_outer, *out = norm.out + norm.out_at(row);
  float sum = 0;
  for (int64_t i = 0; i < norm.width; ++i) {
    if constexpr (fused) residual[i] = from_float<T>(to_float(residual[i]) + to_float(x[i]));
    const float value = to_float(fused ? residual[i] : x[i]);
    sum += value * value;
  }
  const float scale = rsqrtf(sum / static_cast<float>(norm.width) + norm.eps);
  for (int64_t i = 0; i < norm.width; ++i)
    out[i] = from_float<T>(to_float(fused ? residual[i] : x[i]) * scale * to_float(norm.weight[i]));
}

template <bool fused, class T>
__global__ void norm_block(NormRows<T> norm) {
  const int64_t row = blockIdx.x;
  const T* x = norm.x + norm.x_at(row);
  T *residual = norm.residual + row * norm.residual_outer, *out = norm.out + norm.out_at(row);
  float sum = 0;
  for (int64_t i = threadIdx.x; i < norm.width; i += kBlockThreads) {
    if constexpr (fused) residual[i] = from_float<T>(to_float(residual[i]) + to_float(x[i]));
    const float value = to_float(fused ? residual[i] : x[i]);
    sum += value * value;
  }
  const float scale = rsqrtf(block_sum(sum) / static_cast<float>(norm.width) + norm.eps);
  for (int64_t i = threadIdx.x; i < norm.width; i += kBlockThreads)
    out[i] = from_float<T>(to_float(fused ? residual[i] : x[i]) * scale * to_float(norm.weight[i]));
}

}  // namespace

template <class Args>
void rms_norm_cuda_naive(const OpContext& ctx, const Args& args) {
  if (args.x.numel() == 0) return;
  with_cuda_type(args.x.dtype(), [&](auto tag) {
    const auto norm = norm_rows<decltype(tag)>(args);
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(norm.rows, kNaiveThreads));
    norm_naive<fuses<Args>()><<<blocks, kNaiveThreads, 0, stream_of(ctx)>>>(norm);
  });
  LADDER_CUDA_CHECK(cudaGetLastError());
}

template <class Args>
void rms_norm_cuda_block(const OpContext& ctx, const Args& args) {
  if (args.x.numel() == 0) return;
  with_cuda_type(args.x.dtype(), [&](auto tag) {
    const auto norm = norm_rows<decltype(tag)>(args);
    norm_block<fuses<Args>()><<<static_cast<unsigned>(norm.rows), kBlockThreads, 0, stream_of(ctx)>>>(norm);
  });
  LADDER_CUDA_CHECK(cudaGetLastError());
}
// <<< task 1.3.cuda

template void rms_norm_cuda_naive(const OpContext&, const RmsNormArgs&);
template void rms_norm_cuda_naive(const OpContext&, const FusedAddRmsNormArgs&);
template void rms_norm_cuda_block(const OpContext&, const RmsNormArgs&);
template void rms_norm_cuda_block(const OpContext&, const FusedAddRmsNormArgs&);

}  // namespace ladder

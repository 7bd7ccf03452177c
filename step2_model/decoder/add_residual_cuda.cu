#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/core/packs.cuh"
#include "step2_model/decoder/add_residual.h"

namespace ladder {
namespace {

constexpr int kThreads = 256;

// A thread adds one element. It runs once per step and rank of a pipeline, beside all of the range's layers.
template <class T>
__global__ void add_residual_kernel(const T* x, T* residual, int64_t size) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < size) residual[i] = from_float<T>(to_float(residual[i]) + to_float(x[i]));
}

}  // namespace

void add_residual_cuda(const OpContext& ctx, const Tensor& x, const Tensor& residual) {
  const int64_t size = residual.numel();
  if (size == 0) return;
  with_cuda_type(residual.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(size, kThreads));
    add_residual_kernel<<<blocks, kThreads, 0, stream_of(ctx)>>>(cuda_data<const T>(x),
                                                                 cuda_data<T>(residual), size);
  });
  LADDER_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ladder

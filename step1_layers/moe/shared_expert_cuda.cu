#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/moe/moe_cuda.h"

namespace ladder {

namespace {

constexpr int kThreads = 256;

// naive: any shape and stride; a row of blocks per token.
template <class T>
__global__ void add_shared(const float* gate_logits, const T* shared, int64_t shared_stride, T* out,
                           int64_t out_stride, int64_t hidden) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t token = blockIdx.x, i = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (i >= hidden) return;
  const float weight = 1.0f / (1.0f + expf(-gate_logits[token]));
  T* to = out + token * out_stride + i;
  *to = from_float<T>(to_float(*to) + weight * to_float(shared[token * shared_stride + i]));
}

}  // namespace

void add_shared_expert_cuda(const OpContext& ctx, const AddSharedExpertArgs& args) {
  with_cuda_type(args.out.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const int64_t hidden = args.out.dim(1);
    const dim3 grid(static_cast<unsigned>(args.out.dim(0)),
                    static_cast<unsigned>(ceil_div<int64_t>(hidden, kThreads)));
    launch_kernel(ctx, add_shared<T>, grid, kThreads, 0, cuda_data<float>(args.gate_logits),
                  cuda_data<T>(args.shared), args.shared.stride(0), cuda_data<T>(args.out),
                  args.out.stride(0), hidden);
  });
}

}  // namespace ladder

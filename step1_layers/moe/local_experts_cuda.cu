#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/moe/moe_cuda.h"

namespace ladder {

namespace {

constexpr int kThreads = 256;

// naive: an id per thread.
__global__ void look_up(int32_t* ids, int64_t count, const int32_t* local_numbers, int64_t experts) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) ids[i] = ids[i] >= 0 && ids[i] < experts ? local_numbers[ids[i]] : -1;
}

}  // namespace

void find_local_experts_cuda(const OpContext& ctx, const FindLocalExpertsArgs& args) {
  const int64_t count = args.expert_ids.numel();
  launch_kernel(ctx, look_up, static_cast<unsigned>(ceil_div<int64_t>(count, kThreads)), kThreads, 0,
                cuda_data<int32_t>(args.expert_ids), count, cuda_data<int32_t>(args.local_numbers),
                args.local_numbers.numel());
}

}  // namespace ladder

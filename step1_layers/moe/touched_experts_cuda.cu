#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/moe/moe_cuda.h"

namespace ladder {

namespace {

constexpr int kThreads = 512;

// block: a bit for each expert, 32 to a word.
__global__ void __launch_bounds__(kThreads)
    count_touched(const int32_t* ids, int64_t num_ids, int num_experts, int64_t* counts) {
  __shared__ unsigned touched[kMaxCountedExperts / 32];
  __shared__ int total;
  const int thread = static_cast<int>(threadIdx.x), words = (num_experts + 31) / 32;
  for (int word = thread; word < words; word += kThreads) touched[word] = 0;
  if (thread == 0) total = 0;
  allow_next_kernel();
  wait_for_previous_kernel();
  __syncthreads();
  for (int64_t i = thread; i < num_ids; i += kThreads)
    if (ids[i] >= 0 && ids[i] < num_experts) atomicOr(&touched[ids[i] / 32], 1u << ids[i] % 32);
  __syncthreads();
  for (int word = thread; word < words; word += kThreads) atomicAdd(&total, __popc(touched[word]));
  __syncthreads();
  if (thread != 0) return;
  counts[0] += 1;
  counts[1] += total;
}

}  // namespace

void count_touched_experts_cuda(const OpContext& ctx, const CountTouchedExpertsArgs& args) {
  launch_kernel(ctx, count_touched, 1u, kThreads, 0, cuda_data<int32_t>(args.expert_ids),
                args.expert_ids.numel(), static_cast<int>(args.num_experts),
                cuda_data<int64_t>(args.counts) + 2 * args.expert_ids.dim(0));
}

}  // namespace ladder

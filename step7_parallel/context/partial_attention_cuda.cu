// The metadata of one sequence as a kernel's arguments.
#include "step1_layers/core/cuda_kernel.cuh"
#include "step7_parallel/context/partial_attention.h"

namespace ladder {
namespace {

// The next kernel may read them before it waits for this one (kv_cache.h, AttentionMetadata): it is not allowed early.
__global__ void write_numbers(int32_t* numbers, int32_t rows, int32_t keys) {
  wait_for_previous_kernel();
  numbers[threadIdx.x] = threadIdx.x == 1 ? rows : threadIdx.x == 2 ? keys : 0;
}

}  // namespace

void describe_one_sequence_cuda(const OpContext& ctx, int64_t rows, int64_t keys, const Tensor& numbers) {
  launch_kernel(ctx, write_numbers, 1, 4, 0, cuda_data<int32_t>(numbers), static_cast<int32_t>(rows),
                static_cast<int32_t>(keys));
}

}  // namespace ladder

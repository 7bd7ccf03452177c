// Biases on single tokens.
#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/sampling/sampling_cuda.h"

namespace ladder {

namespace {

constexpr int kThreads = 256;

// row_per_block
// Any shape. A block owns a row, a thread one of its entries, as for penalties; a row without entries costs
// one block that reads two numbers.
__global__ void logit_bias_kernel(float* logits, int64_t stride, int64_t vocab, const int32_t* row_start,
                                  const int32_t* token_ids, const float* biases) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t row = blockIdx.x;
  float* x = logits + row * stride;
  for (int64_t entry = row_start[row] + static_cast<int64_t>(threadIdx.x); entry < row_start[row + 1];
       entry += blockDim.x) {
    const int32_t id = token_ids[entry];
    if (id < 0 || id >= vocab) continue;
    const float bias = biases[entry];
    x[id] = bias == -INFINITY ? -INFINITY : x[id] + bias;
  }
}

}  // namespace

void apply_logit_bias_cuda(const OpContext& ctx, const ApplyLogitBiasArgs& args) {
  if (args.logits.dim(0) == 0) return;
  launch_kernel(ctx, logit_bias_kernel, static_cast<unsigned>(args.logits.dim(0)), kThreads, 0,
                cuda_data<float>(args.logits), args.logits.stride(0), args.logits.dim(1),
                cuda_data<int32_t>(args.row_start), cuda_data<int32_t>(args.token_ids),
                cuda_data<float>(args.biases));
}

}  // namespace ladder

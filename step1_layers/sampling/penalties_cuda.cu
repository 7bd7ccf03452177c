// Penalties on the tokens that a sequence has used.
#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/sampling/sampling_cuda.h"

namespace ladder {

namespace {

constexpr int kThreads = 256;

// row_per_block
// Any shape. A block owns a row, a thread one of its used tokens: the cost follows their number, not the
// vocabulary's. Every token stands in the list once, so no two threads meet.
__global__ void penalties_kernel(float* logits, int64_t stride, int64_t vocab, const int32_t* row_start,
                                 const int32_t* token_ids, const int32_t* output_counts,
                                 const float* repetition, const float* presence, const float* frequency) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t row = blockIdx.x;
  float* x = logits + row * stride;
  for (int64_t entry = row_start[row] + static_cast<int64_t>(threadIdx.x); entry < row_start[row + 1];
       entry += blockDim.x) {
    const int32_t id = token_ids[entry];
    if (id < 0 || id >= vocab) continue;
    float logit = x[id];
    logit = logit > 0 ? __fdiv_rn(logit, repetition[row]) : __fmul_rn(logit, repetition[row]);
    const int32_t count = output_counts[entry];
    if (count > 0) logit -= __fadd_rn(__fmul_rn(frequency[row], static_cast<float>(count)), presence[row]);
    x[id] = logit;
  }
}

}  // namespace

void apply_penalties_cuda(const OpContext& ctx, const ApplyPenaltiesArgs& args) {
  if (args.logits.dim(0) == 0) return;
  launch_kernel(ctx, penalties_kernel, static_cast<unsigned>(args.logits.dim(0)), kThreads, 0,
                cuda_data<float>(args.logits), args.logits.stride(0), args.logits.dim(1),
                cuda_data<int32_t>(args.row_start), cuda_data<int32_t>(args.token_ids),
                cuda_data<int32_t>(args.output_counts), cuda_data<float>(args.repetition),
                cuda_data<float>(args.presence), cuda_data<float>(args.frequency));
}

}  // namespace ladder

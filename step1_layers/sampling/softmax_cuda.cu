// softmax and log-softmax by a block per row.
#include "step1_layers/sampling/row_sum_cuda.cuh"
#include "step1_layers/sampling/sampling_cuda.h"

namespace ladder {

namespace {

using namespace row_sum;

// block
// Any shape. A block owns a row and reads it three times, one value per thread and step: for the largest, for
// the sum, for the result.
// online
// Any shape. Largest and sum come from one pass, so the row is read twice, and that pass keeps eight loads
// per thread in flight, where the rung below waits for each.
template <bool online, bool log>
__global__ void __launch_bounds__(kThreads)
    softmax_kernel(const float* logits, int64_t stride, float* out, int64_t out_stride, int64_t vocab) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const float* x = logits + int64_t{blockIdx.x} * stride;
  float* to = out + int64_t{blockIdx.x} * out_stride;
  const RowSum row = online ? row_sum_online(x, vocab) : row_sum_two_passes(x, vocab);
  const float last = log ? logf(row.sum) : 1.0f / row.sum;
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads)
    to[i] = log ? x[i] - row.largest - last : expf(x[i] - row.largest) * last;
}

template <bool online, bool log>
void run_softmax(const OpContext& ctx, const SoftmaxArgs& args) {
  if (args.logits.dim(0) == 0) return;
  launch_kernel(ctx, softmax_kernel<online, log>, static_cast<unsigned>(args.logits.dim(0)), kThreads, 0,
                cuda_data<float>(args.logits), args.logits.stride(0), cuda_data<float>(args.out),
                args.out.stride(0), args.logits.dim(1));
}

}  // namespace

void softmax_cuda_block(const OpContext& ctx, const SoftmaxArgs& args) {
  run_softmax<false, false>(ctx, args);
}
void softmax_cuda_online(const OpContext& ctx, const SoftmaxArgs& args) {
  run_softmax<true, false>(ctx, args);
}
void log_softmax_cuda_block(const OpContext& ctx, const SoftmaxArgs& args) {
  run_softmax<false, true>(ctx, args);
}
void log_softmax_cuda_online(const OpContext& ctx, const SoftmaxArgs& args) {
  run_softmax<true, true>(ctx, args);
}

}  // namespace ladder
